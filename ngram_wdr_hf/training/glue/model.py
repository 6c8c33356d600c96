"""A checkpoint's trunk in a classifier of Transformers' own, and its tokenizer made fit for that."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm, prod

import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from ...data.errors import InputError
from ...data.glue import GlueExamples, GlueTask
from ...data.tokenizer import PADDING, load_tokenizer
from ...method.configuration import NgramConfigMixin
from ..clm.data import MOST_UNKNOWN
from ..common.models import positions

logger = logging.get_logger(__name__)

USUAL_LENGTH = 128
# From this share of unknown tokens on, there is a warning.
MANY_UNKNOWN = 0.1
# What a configuration says about the class that wrote it.
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
    vocab_size = config.get_text_config().vocab_size
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens and {name_or_path} only {vocab_size}: use the tokenizer that "
            "the model was trained with."
        )
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
    """What has a switch for it, as Reformer and BERT, is classified by its first token, which must see the others."""
    if not getattr(config, "is_decoder", False):
        return
    logger.warning(f"A {config.model_type} is classified by its first token, and reads in both directions for that.")
    config.is_decoder = False
    if config.model_type == "reformer":
        config.local_num_chunks_after = config.lsh_num_chunks_after = 1


def _load_trunk(name_or_path: str, config: PreTrainedConfig) -> PreTrainedModel:
    model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    try:
        # Its report is about the heads, which are left out, and the classifier, which is fresh; the trunk is checked.
        with _errors_only():
            model, info = model_class.from_pretrained(
                name_or_path,
                config=config,
                # What was trained in half precision cannot take small steps in it.
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # the classes are many: no weights, cut off, of another shape
        reason = " ".join(str(error).split())
        raise InputError(f"The weights of {name_or_path} cannot be loaded ({reason}): save them again.") from error
    absent = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    trunk = f"{model.base_model_prefix}."
    # A pooler comes with the classifier; a language model has none.
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
    A token that is nothing but padding, as causal models are classified by the last token that is not: a text may end
    in the token for its end.
    """
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        with _errors_only():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    # Positions are counted from the left.
    tokenizer.padding_side = "right"


def join_pairs(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer, or if it would write two texts without a break, one that puts its separator between them."""
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False):
        return tokenizer
    between = tokenizer.sep_token or tokenizer.eos_token
    if between is None or not tokenizer.is_fast:
        raise InputError("The tokenizer cannot join two sentences: give it an end token, as `eos_token`.")
    # What it puts around a single text goes around both.
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


def encode(
    examples: GlueExamples,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> list[dict[str, list[int] | int]]:
    r"""
    What the model reads, example by example.

    Args:
        examples (`GlueExamples`): The texts and labels.
        model (`PreTrainedModel`): The model that will read them.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_length (`int`, *optional*): Texts are cut to so many tokens, of a pair the longer one first; to 128 by
            default, or as many as the model can see.
    """
    longest = min(positions(model) or tokenizer.model_max_length, tokenizer.model_max_length)
    if max_length is not None and max_length > longest:
        raise InputError(f"`--max_length {max_length}` is more than the model can see: at most {longest}.")
    encoded = tokenizer(*examples.texts, truncation=True, max_length=max_length or min(USUAL_LENGTH, longest))
    # Of a model that does not know two kinds of text, GPT-2 say, types would be words.
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    names = [name for name in encoded if has_types or name != "token_type_ids"]
    rows = [
        {**dict(zip(names, values, strict=True)), "labels": label}
        for *values, label in zip(*(encoded[name] for name in names), examples.labels, strict=True)
    ]
    _check_tokens(rows, model.config, tokenizer)
    return rows


def _check_tokens(rows: list[dict], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Where its files are missing, Transformers may make a tokenizer that knows no word."""
    around = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    num_tokens = num_unknown = 0
    for i, row in enumerate(rows):
        words = [token for token in row["input_ids"] if token not in around]
        if not words:
            raise InputError(
                f"The tokenizer makes nothing of the text of example {i + 1}: give another, or remove it."
            )
        num_tokens += len(words)
        num_unknown += words.count(tokenizer.unk_token_id)
    if num_unknown >= MOST_UNKNOWN * num_tokens:
        raise InputError(
            f"The tokenizer does not cover the examples: {num_unknown / num_tokens:.0%} of their tokens are unknown "
            "to it. Give a checkpoint with the tokenizer that it was trained with."
        )
    if num_unknown >= MANY_UNKNOWN * num_tokens:
        logger.warning_once(f"{num_unknown / num_tokens:.0%} of the examples' tokens are unknown to the tokenizer.")
    # An encoder-decoder model is classified by the last of its end tokens, of which all texts have equally many.
    if config.is_encoder_decoder and len({row["input_ids"].count(config.eos_token_id) for row in rows} | {0}) != 2:
        raise InputError(
            "An encoder-decoder model is classified by a text's end token, and the tokenizer does not put equally "
            "many of them into every text: give a tokenizer that ends each with one."
        )


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Fills up the texts of a batch to the longest; for a Reformer, to a length that it can be trained with."""
    config, options = model.config, {}
    if config.model_type == "reformer" and config.axial_pos_embds:
        options = {"padding": "max_length", "max_length": prod(config.axial_pos_shape)}
    elif config.model_type == "reformer":
        chunks = (getattr(config, f"{kind}_attn_chunk_length") for kind in set(config.attn_layers))
        options = {"pad_to_multiple_of": lcm(*chunks)}
    return DataCollatorWithPadding(tokenizer, **options)
