"""Load a checkpoint's trunk into a classifier of Transformers, and adapt its tokenizer."""

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

from ...data.errors import InputError
from ...data.glue import GlueTask
from ...data.tokenizer import PADDING, load_tokenizer
from ...evaluation.checkpoint import check_vocabulary
from ...method.configuration import NgramConfigMixin

logger = logging.get_logger(__name__)

# Configuration fields about the class that wrote it.
OF_THE_CLASS = ("model_type", "architectures", "auto_map", "transformers_version", "dtype")


def load_classifier(name_or_path: str, task: GlueTask) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    r"""
    The stock model for sequence classification around a checkpoint's trunk, which arrives whole; only what the
    checkpoint cannot have, the classifier, is fresh. The N-gram heads are left out: they have no part in it.

    Args:
        name_or_path (`str`): A checkpoint with its tokenizer, plain or one of ours, a folder or a name.
        task (`GlueTask`): What the labels mean.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model, in float32, and its tokenizer, which has a token
        for padding and joins pairs.
    """
    tokenizer = load_tokenizer(name_or_path)
    try:
        config = stock_config(AutoConfig.from_pretrained(name_or_path))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"There is no usable model in {name_or_path} ({' '.join(str(error).split())}).") from error
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise InputError(
            f"{name_or_path} is a model of type {config.model_type}, for which Transformers has no classifier: give "
            "another, such as a GPT-2, Llama, BART, T5 or BERT, with heads or without."
        )
    check_vocabulary(tokenizer, config.get_text_config().vocab_size, name_or_path)
    config.id2label = dict(enumerate(task.labels))
    config.label2id = {name: i for i, name in enumerate(task.labels)}
    _read_both_ways(config)
    model = _load_trunk(name_or_path, config)
    _set_padding(model, tokenizer)
    return model, join_pairs(tokenizer) if len(task.sentences) > 1 else tokenizer


def stock_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same model's configuration without N-gram fields."""
    if not isinstance(config, NgramConfigMixin):
        return config
    ours = type(config)
    parents = (parent for parent in ours.__mro__ if issubclass(parent, PreTrainedConfig))
    stock = next(parent for parent in parents if not issubclass(parent, NgramConfigMixin))
    own_fields = ours.__dataclass_fields__.keys() - stock.__dataclass_fields__.keys()
    left_out = {*OF_THE_CLASS, *own_fields}
    return stock(**{name: value for name, value in config.to_dict().items() if name not in left_out})


def _read_both_ways(config: PreTrainedConfig) -> None:
    """Models with an `is_decoder` switch (Reformer, BERT) are classified by their first token: let it see all."""
    if not getattr(config, "is_decoder", False):
        return
    logger.warning(f"A {config.model_type} is classified by its first token, and reads in both directions for that.")
    config.is_decoder = False
    if config.model_type == "reformer":
        config.local_num_chunks_after = config.lsh_num_chunks_after = 1


def _load_trunk(name_or_path: str, config: PreTrainedConfig) -> PreTrainedModel:
    model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    try:
        # The loading report lists the missing heads and the new classifier; the trunk is checked below.
        with _errors_only():
            model, info = model_class.from_pretrained(
                name_or_path,
                config=config,
                # Half precision is too coarse for small steps.
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # the classes are many: no weights, cut off, of another shape
        reason = " ".join(str(error).split())
        raise InputError(f"The weights of {name_or_path} cannot be loaded ({reason}): save them again.") from error
    absent = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    trunk = f"{model.base_model_prefix}."
    # The pooler belongs to the classifier.
    absent = sorted(name for name in absent if name.startswith(trunk) and ".pooler." not in name)
    if absent:
        raise InputError(
            f"{name_or_path} is no complete {config.model_type}: `{absent[0]}` is missing or has another shape, and "
            f"{len(absent) - 1} more. Use a complete checkpoint."
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
    Give the tokenizer a token for padding only. A causal model is classified by the last token that is not padding,
    and a text may end in its end token.
    """
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        with _errors_only():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    # Positions count from the left.
    tokenizer.padding_side = "right"


def join_pairs(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer, or one that puts a separator between the two texts of a pair if it did not."""
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False):
        return tokenizer
    between = tokenizer.sep_token or tokenizer.eos_token
    if between is None or not tokenizer.is_fast:
        raise InputError("The tokenizer cannot join two sentences: give it an end token, as `eos_token`.")
    # The special tokens around a single text go around the pair.
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, is_special = tokenizer.convert_ids_to_tokens(encoded.input_ids), encoded.special_tokens_mask
    before = tokens[: is_special.index(0)]
    after = tokens[len(tokens) - is_special[::-1].index(0) :]
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", between, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*before, between, *after}],
    )
    # Some classes make their own post-processor when they are loaded.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )
