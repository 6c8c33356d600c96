"""The model of a language modeling run: new by preset, or from a checkpoint."""

import math
from typing import Any

from transformers import PreTrainedTokenizerBase

from ... import (
    WDRNgramGPT2LMHeadModel,
    WDRNgramReformerConfig,
    WDRNgramReformerModelWithLMHead,
    WDRNgramTensorizedTransformerLMHeadModel,
)
from ...data.tokenizer import start_token_id
from ...evaluation.checkpoint import load_checkpoint
from ...modeling.causal import NgramMixin
from ..common.arguments import ModelArguments
from ..common.model import DEFAULT_NGRAM_SIZE, asked_fields, new_model

LANGUAGE_MODELS = {
    "gpt2": WDRNgramGPT2LMHeadModel,
    "tensorized": WDRNgramTensorizedTransformerLMHeadModel,
    "reformer": WDRNgramReformerModelWithLMHead,
}


def build_clm_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int | None, do_train: bool = True
) -> NgramMixin:
    """The preset's model, new, for blocks of `block_size` tokens, or any causal language model from a checkpoint."""
    fields = asked_fields(arguments, do_train)
    if arguments.model_name_or_path is not None:
        default_size = DEFAULT_NGRAM_SIZE if do_train else 1
        return load_checkpoint(arguments.model_name_or_path, "causal", tokenizer, default_size, **fields)
    preset = arguments.presets[arguments.preset]
    sizes = {"ngram_size": DEFAULT_NGRAM_SIZE, **preset.config, **fields}
    model = new_model(
        LANGUAGE_MODELS[preset.backbone],
        vocab_size=len(tokenizer),
        bos_token_id=start_token_id(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        **{**sizes, **_length_fields(preset.backbone, block_size, sizes)},
    )
    # For generation only: in a forward, the end of a text is no padding.
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    return model


def _length_fields(backbone: str, block_size: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """The fields of a backbone's configuration that make it read `block_size` tokens."""
    if backbone != "reformer":
        return {"max_position_embeddings": block_size}
    defaults = WDRNgramReformerConfig()
    names = ("local_attn_chunk_length", "lsh_attn_chunk_length")
    chunk = math.lcm(*(sizes.get(name, getattr(defaults, name)) for name in names))
    # In training, a Reformer reads as many tokens as its two axes of positions have places, in whole chunks.
    places = -(-block_size // chunk) * chunk
    rows = max(divisor for divisor in range(1, math.isqrt(places) + 1) if places % divisor == 0)
    return {"max_position_embeddings": places, "axial_pos_shape": [rows, places // rows]}
