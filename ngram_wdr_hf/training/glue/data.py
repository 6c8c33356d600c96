"""The data of fine-tuning on GLUE: the examples of a task, as a model reads them."""

from math import lcm, prod
from pathlib import Path

from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.errors import InputError
from ...data.glue import GlueExamples, GlueTask, load_glue_dataset, read_glue_file
from ..common.model import positions
from ..common.text_data import MOST_UNKNOWN
from .arguments import GlueDataArguments

logger = logging.get_logger(__name__)

USUAL_LENGTH = 128
# The share of unknown tokens that causes a warning.
MANY_UNKNOWN = 0.1

Splits = dict[str, GlueExamples]


def load_splits(data: GlueDataArguments, task: GlueTask) -> Splits:
    """The training and validation examples of a task."""
    if data.dataset_name is not None:
        return load_glue_dataset(data.dataset_name, task, is_only_task=len(data.task) == 1)
    files = {"train": data.train_file, "validation": data.validation_file}
    if data.data_dir is not None:
        folder = Path(data.data_dir) / task.title
        files = {"train": folder / "train.tsv", "validation": folder / "dev.tsv"}
    return {split: read_glue_file(path, task) for split, path in files.items()}


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
    # A model without token types, such as GPT-2, would take them for words.
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    names = [name for name in encoded if has_types or name != "token_type_ids"]
    rows = [
        {**dict(zip(names, values, strict=True)), "labels": label}
        for *values, label in zip(*(encoded[name] for name in names), examples.labels, strict=True)
    ]
    _check_tokens(rows, model.config, tokenizer)
    return rows


def _check_tokens(rows: list[dict], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer knows the words: without its files, Transformers may make an empty one."""
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
    # An encoder-decoder model is classified by its last end token, and every text must have equally many.
    if config.is_encoder_decoder and len({row["input_ids"].count(config.eos_token_id) for row in rows} | {0}) != 2:
        raise InputError(
            "An encoder-decoder model is classified by a text's end token, and the tokenizer does not put equally "
            "many of them into every text: give a tokenizer that ends each with one."
        )


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Pad the texts of a batch to the longest; for a Reformer, to a length that it can be trained with."""
    config, options = model.config, {}
    if config.model_type == "reformer" and config.axial_pos_embds:
        options = {"padding": "max_length", "max_length": prod(config.axial_pos_shape)}
    elif config.model_type == "reformer":
        chunks = (getattr(config, f"{kind}_attn_chunk_length") for kind in set(config.attn_layers))
        options = {"pad_to_multiple_of": lcm(*chunks)}
    return DataCollatorWithPadding(tokenizer, **options)
