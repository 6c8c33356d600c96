"""Classifiers for GLUE: a checkpoint's trunk in a stock model, and its tokenizer."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from ...backbones.trunk import stock_config
from ...data.errors import InputError
from ...data.glue import GlueTask
from ...data.tokenizers import PADDING, load_tokenizer
from ...evaluation.models import check_vocabulary

logger = logging.get_logger(__name__)


def load_classifier(name_or_path: str, task: GlueTask) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    r"""
    Load a checkpoint's trunk into the stock model for sequence classification. The classification layer is new; the
    N-gram heads are left out.

    Args:
        name_or_path (`str`): A checkpoint with its tokenizer, with or without heads: a folder or a name on the Hub.
        task (`GlueTask`): The task, for its labels.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32, and its tokenizer with a padding token
        and a separator for pairs.
    """
    tokenizer = load_tokenizer(name_or_path)
    try:
        config = stock_config(AutoConfig.from_pretrained(name_or_path))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"`--model_name_or_path {name_or_path}` has no usable configuration ({' '.join(str(error).split())}): "
            "choose a checkpoint."
        ) from error
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise InputError(
            f"`--model_name_or_path {name_or_path}` has type {config.model_type}, for which Transformers has no "
            "classifier: use another, such as GPT-2, Llama, BART, T5 or BERT, with or without heads."
        )
    check_vocabulary(tokenizer, config.get_text_config().vocab_size, name_or_path)
    config.id2label = dict(enumerate(task.labels))
    config.label2id = {name: i for i, name in enumerate(task.labels)}
    _make_bidirectional(config)
    model = _load_trunk(name_or_path, config)
    _set_padding(model, tokenizer)
    return model, join_pairs(tokenizer) if len(task.sentences) > 1 else tokenizer


def _make_bidirectional(config: PreTrainedConfig) -> None:
    """
    Switch off causal attention, in place and with a warning, in models that classify at their first token (those with
    `is_decoder`, such as a causal BERT or Reformer). Other models stay as they are.
    """
    if not getattr(config, "is_decoder", False):
        return
    logger.warning(
        f"Attention of the {config.model_type} is now bidirectional, because it classifies at its first token."
    )
    config.is_decoder = False
    if config.model_type == "reformer":
        config.local_num_chunks_after = config.lsh_num_chunks_after = 1


def _load_trunk(name_or_path: str, config: PreTrainedConfig) -> PreTrainedModel:
    model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    try:
        # No loading report about heads and classifier; the trunk is checked below.
        with _errors_only():
            model, info = model_class.from_pretrained(
                name_or_path,
                config=config,
                # Half precision is too coarse for small updates.
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # no weights, truncated, other shapes: many classes
        reason = " ".join(str(error).split())
        raise InputError(
            f"`--model_name_or_path {name_or_path}` has weights that cannot be loaded ({reason}): save it again, or "
            "choose another checkpoint."
        ) from error
    missing = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    trunk = f"{model.base_model_prefix}."
    # The pooler belongs to the classifier.
    missing = sorted(name for name in missing if name.startswith(trunk) and ".pooler." not in name)
    if missing:
        raise InputError(
            f"`--model_name_or_path {name_or_path}` is an incomplete {config.model_type}: `{missing[0]}` and "
            f"{len(missing) - 1} more weights are missing or have another shape; use a complete checkpoint."
        )
    return model


@contextmanager
def _errors_only() -> Iterator[None]:
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _set_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Give the tokenizer a padding token that is not the end token, and the model its id and an embedding, in place. A
    causal model classifies at the last token that is not padding, and a text may end with the end token.
    """
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        with _errors_only():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"


def join_pairs(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """
    Return a tokenizer that separates the two texts of a pair: the same one, or, if it adds no separator, a copy that
    puts its SEP or EOS token between them. Raise an `InputError` if it has neither, or is not a fast tokenizer.
    """
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False):
        return tokenizer
    separator = tokenizer.sep_token or tokenizer.eos_token
    if separator is None or not tokenizer.is_fast:
        raise InputError(
            "The tokenizer of `--model_name_or_path` cannot join two sentences: use a fast tokenizer with an "
            "`eos_token` or `sep_token`."
        )
    # The special tokens around a single text also go around a pair.
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, is_special = tokenizer.convert_ids_to_tokens(encoded.input_ids), encoded.special_tokens_mask
    before = tokens[: is_special.index(0)]
    after = tokens[len(tokens) - is_special[::-1].index(0) :]
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", separator, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*before, separator, *after}],
    )
    # Not the original class: some classes replace the post-processor when loaded.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )
