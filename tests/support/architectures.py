"""Tiny models of many architectures of Transformers, from random configurations."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.support.tiny import VOCAB_SIZE

# Size fields by their names in configurations; each configuration gets those it has.
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    **dict.fromkeys(("dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"), 0.0),
    **dict.fromkeys(("activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "residual_dropout"), 0.0),
    **dict.fromkeys(("dropout_rate", "router_jitter_noise", "hidden_dropout"), 0.0),
    "vocab_size": VOCAB_SIZE,
    "rotary_dim": 4,
    "is_decoder": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
_GROUPS = {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
# T5Gemma has one configuration for the encoder and one for the decoder.
_SIDE = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    **{name: SIZES[name] for name in ("num_key_value_heads", "head_dim", "intermediate_size", "initializer_range")},
    "final_logit_softcapping": 4.0,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2, "mamba_d_state": 8, "mamba_n_groups": 1}


@dataclass(frozen=True)
class Architecture:
    """
    Args:
        model (`str`): The name of the class in Transformers.
        fields (`dict[str, Any]`): Configuration fields in addition to `SIZES`.
        dtype (`torch.dtype`): float32 for classes with parts that do not run in float64.
    """

    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    def build(self, seed: int = 0) -> PreTrainedModel:
        model_class = getattr(transformers, self.model)
        config_class = model_class.config_class
        known = config_class()
        fields = {
            name: value
            for name, value in SIZES.items()
            if hasattr(known, name) and not isinstance(getattr(config_class, name, None), property)
        }
        fields |= self.fields
        if known.is_encoder_decoder:
            fields["decoder_start_token_id"] = 2
        torch.manual_seed(seed)
        model = model_class(config_class(**fields)).to(self.dtype).eval()
        if not model.can_generate():
            return model
        # Without an end token, all texts have the same length.
        model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
        model.generation_config.use_cache = True
        return model


def _single(model: str, **fields: Any) -> Architecture:
    return Architecture(model, fields, torch.float32)


ARCHITECTURES = {
    architecture.model: architecture
    for architecture in (
        Architecture("ApertusForCausalLM"),
        Architecture("ArceeForCausalLM"),
        Architecture("BambaForCausalLM", {**_MAMBA, "attn_layer_indices": [1]}),
        Architecture("BioGptForCausalLM"),
        _single("BloomForCausalLM"),
        Architecture("CodeGenForCausalLM"),
        Architecture("CohereForCausalLM", {"logit_scale": 0.3}),
        Architecture("Cohere2ForCausalLM"),
        Architecture("CTRLLMHeadModel"),
        _single("DeepseekV2ForCausalLM", **_LATENT, **_GROUPS),
        _single("DeepseekV3ForCausalLM", **_LATENT, **_GROUPS, head_dim=4),
        Architecture("Ernie4_5ForCausalLM"),
        Architecture("Exaone4ForCausalLM"),
        Architecture("FalconForCausalLM"),
        Architecture("Glm4ForCausalLM"),
        Architecture("GPTBigCodeForCausalLM"),
        Architecture("GPTJForCausalLM"),
        Architecture("GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]], "window_size": 4}),
        _single("GptOssForCausalLM"),
        Architecture("GraniteForCausalLM", {"logits_scaling": 3.0}),
        _single("GraniteMoeForCausalLM"),
        Architecture("HeliumForCausalLM"),
        _single("JambaForCausalLM", attn_layer_period=2, attn_layer_offset=1),
        Architecture("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
        _single("Llama4ForCausalLM"),
        _single("MambaForCausalLM"),
        _single("Mamba2ForCausalLM", num_heads=8, head_dim=8, expand=2, state_size=8, n_groups=1, chunk_size=4),
        _single("MiniMaxForCausalLM"),
        _single("MixtralForCausalLM"),
        _single("MptForCausalLM"),
        Architecture("NanoChatForCausalLM", {"final_logit_softcapping": 4.0}),
        Architecture("NemotronForCausalLM"),
        Architecture("OlmoForCausalLM"),
        Architecture("Olmo2ForCausalLM"),
        _single("OlmoeForCausalLM"),
        Architecture("OpenAIGPTLMHeadModel"),
        Architecture("PersimmonForCausalLM"),
        Architecture("PhiForCausalLM"),
        Architecture("Phi3ForCausalLM"),
        Architecture("Qwen2ForCausalLM"),
        _single("Qwen2MoeForCausalLM"),
        _single("Qwen3MoeForCausalLM"),
        _single("Qwen3NextForCausalLM", layer_types=["linear_attention", "full_attention"]),
        Architecture("RecurrentGemmaForCausalLM", {"num_hidden_layers": 3}),
        Architecture("RwkvForCausalLM"),
        Architecture("SmolLM3ForCausalLM"),
        Architecture("StableLmForCausalLM"),
        Architecture("Starcoder2ForCausalLM"),
        _single("XGLMForCausalLM"),
        Architecture("BigBirdPegasusForConditionalGeneration"),
        Architecture("BlenderbotForConditionalGeneration"),
        Architecture("BlenderbotSmallForConditionalGeneration"),
        Architecture("LongT5ForConditionalGeneration"),
        Architecture("M2M100ForConditionalGeneration"),
        Architecture("MBartForConditionalGeneration"),
        Architecture("MT5ForConditionalGeneration"),
        Architecture("PegasusForConditionalGeneration"),
        Architecture("PegasusXForConditionalGeneration"),
        Architecture("PLBartForConditionalGeneration"),
        Architecture("SwitchTransformersForConditionalGeneration"),
        _single("T5GemmaForConditionalGeneration", encoder=_SIDE, decoder=_SIDE),
        Architecture("UMT5ForConditionalGeneration"),
    )
}

REFUSED = {
    architecture.model: architecture
    for architecture in (
        Architecture("BartForCausalLM"),
        Architecture("BertLMHeadModel"),
        Architecture("CpmAntForCausalLM"),
        Architecture("ElectraForCausalLM"),
        _single("FSMTForConditionalGeneration"),
        Architecture("LlamaModel"),
        Architecture("ModernBertDecoderForCausalLM"),
        Architecture("RobertaForCausalLM"),
        Architecture("RobertaForMaskedLM"),
        Architecture("XLMWithLMHeadModel"),
    )
}
