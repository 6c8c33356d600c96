"""Model of a language modeling run: a new one by preset, or a checkpoint."""

import math
from typing import Any

from transformers import PreTrainedTokenizerBase

from ... import (
    WDRNgramGPT2LMHeadModel,
    WDRNgramReformerConfig,
    WDRNgramReformerModelWithLMHead,
    WDRNgramTensorizedTransformerLMHeadModel,
)
from ...data.tokenizers import end_token_id, start_token_id
from ...evaluation.models import load_checkpoint
from ...modeling.causal import NgramMixin
from ..common.arguments import GenerativeModelArguments
from ..common.model import DEFAULT_NGRAM_SIZE, config_fields, new_head_fields, new_model

LANGUAGE_MODELS = {
    "gpt2": WDRNgramGPT2LMHeadModel,
    "tensorized": WDRNgramTensorizedTransformerLMHeadModel,
    "reformer": WDRNgramReformerModelWithLMHead,
}


def build_clm_model(
    arguments: GenerativeModelArguments,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int | None,
    do_train: bool = True,
) -> NgramMixin:
    """
    Return the checkpoint of `--model_name_or_path` with heads, or a new model by preset, for up to `block_size`
    tokens. A plain checkpoint gets new heads if `do_train`, else none. `block_size` is ignored for a checkpoint.
    """
    fields = config_fields(arguments, do_train, head_loss_tokens=arguments.head_loss_tokens)
    if arguments.model_name_or_path is not None:
        new_heads = new_head_fields(arguments, DEFAULT_NGRAM_SIZE, do_train)
        return load_checkpoint(arguments.model_name_or_path, arguments.model_kind, tokenizer, new_heads, **fields)
    preset = arguments.presets[arguments.preset]
    sizes = {**new_head_fields(arguments, DEFAULT_NGRAM_SIZE), **arguments.new_config, **fields}
    model = new_model(
        LANGUAGE_MODELS[preset.backbone],
        arguments,
        vocab_size=len(tokenizer),
        bos_token_id=start_token_id(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        **{**sizes, **_length_fields(preset.backbone, block_size, sizes)},
    )
    # In `generation_config` only: in a forward pass, <eos> is not padding.
    model.generation_config.pad_token_id = end_token_id(tokenizer)
    return model


def _length_fields(backbone: str, block_size: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """
    Return the configuration fields that set the maximum length to `block_size` tokens; for a Reformer, to the next
    multiple of its chunk length. `sizes` holds the configuration fields so far.
    """
    if backbone != "reformer":
        return {"max_position_embeddings": block_size}
    defaults = WDRNgramReformerConfig()
    names = ("local_attn_chunk_length", "lsh_attn_chunk_length")
    chunk = math.lcm(*(sizes.get(name, getattr(defaults, name)) for name in names))
    # A Reformer trains on inputs of exactly rows * columns tokens, a multiple of the chunk length.
    length = -(-block_size // chunk) * chunk
    rows = max(divisor for divisor in range(1, math.isqrt(length) + 1) if length % divisor == 0)
    return {"max_position_embeddings": length, "axial_pos_shape": [rows, length // rows]}
