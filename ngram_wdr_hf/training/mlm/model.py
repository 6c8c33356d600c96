"""Model of a masked language modeling run: a new one by preset, or a checkpoint."""

from transformers import PreTrainedTokenizerBase

from ... import WDRNgramBertForMaskedLM, WDRNgramModernBertForMaskedLM
from ...evaluation.models import load_checkpoint
from ...modeling.masked import NgramMaskedMixin
from ..common.model import config_fields, new_head_fields, new_model
from .arguments import MlmModelArguments
from .presets import NGRAM_SIZE

MASKED_MODELS = {"bert": WDRNgramBertForMaskedLM, "modernbert": WDRNgramModernBertForMaskedLM}


def build_mlm_model(
    arguments: MlmModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int | None, do_train: bool = True
) -> NgramMaskedMixin:
    """
    Return the checkpoint of `--model_name_or_path` with heads, or a new BERT or ModernBERT by preset, for up to
    `block_size` tokens. A plain checkpoint gets new heads if `do_train`, else none. `block_size` is ignored for a
    checkpoint.
    """
    fields = config_fields(arguments, do_train, wdr_compose=arguments.wdr_compose)
    if arguments.model_name_or_path is not None:
        new_heads = new_head_fields(arguments, NGRAM_SIZE, do_train)
        return load_checkpoint(arguments.model_name_or_path, arguments.model_kind, tokenizer, new_heads, **fields)
    preset = arguments.presets[arguments.preset]
    special = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    return new_model(
        MASKED_MODELS[preset.backbone],
        arguments,
        vocab_size=len(tokenizer),
        max_position_embeddings=block_size,
        **{name: getattr(tokenizer, name) for name in special},
        **{**new_head_fields(arguments, NGRAM_SIZE), **arguments.new_config, **fields},
    )
