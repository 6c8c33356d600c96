"""Data of fine-tuning on GLUE: the examples of a task as model inputs."""

from math import lcm, prod
from pathlib import Path

from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.errors import InputError
from ...data.glue import GlueExamples, GlueTask, load_glue_dataset, read_glue_file
from ...evaluation.lengths import max_positions
from ..common.text_data import MAX_UNKNOWN
from .arguments import GlueDataArguments

logger = logging.get_logger(__name__)

DEFAULT_MAX_LENGTH = 128
# The share of unknown tokens that causes a warning.
MANY_UNKNOWN = 0.1

Splits = dict[str, GlueExamples]


def load_splits(data: GlueDataArguments, task: GlueTask) -> Splits:
    """Load the examples of a task by split, `train` and `validation`, from the files or the dataset of the options."""
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
    Return the model's inputs, a dictionary per example, with its label in `labels`. Raise an `InputError` if the
    tokenizer does not fit the examples.

    Args:
        examples (`GlueExamples`): Texts and labels.
        model (`PreTrainedModel`): The classifier.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_length (`int`, *optional*): Examples are truncated to this many tokens; of a pair, the longer text first.
            Defaults to 128, or the model's maximum if that is less.
    """
    longest = min(max_positions(model) or tokenizer.model_max_length, tokenizer.model_max_length)
    if max_length is not None and max_length > longest:
        raise InputError(f"`--max_length` must be at most {longest}, the model's maximum, got {max_length}.")
    encoded = tokenizer(*examples.texts, truncation=True, max_length=max_length or min(DEFAULT_MAX_LENGTH, longest))
    # GPT-2, which has no token types, would look them up in the token embedding.
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    names = [name for name in encoded if has_types or name != "token_type_ids"]
    rows = [
        {**dict(zip(names, values, strict=True)), "labels": label}
        for *values, label in zip(*(encoded[name] for name in names), examples.labels, strict=True)
    ]
    _check_tokens(rows, model.config, tokenizer)
    return rows


def _check_tokens(rows: list[dict], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Raise an `InputError` if an example has no tokens, if half of all tokens are unknown (without its files,
    Transformers may create an empty tokenizer), or if an encoder-decoder model would find no end token to classify at.
    Warn from a tenth of unknown tokens on.
    """
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    num_tokens = num_unknown = 0
    for i, row in enumerate(rows):
        tokens = [token for token in row["input_ids"] if token not in special]
        if not tokens:
            raise InputError(
                f"The tokenizer of `--model_name_or_path` gives no tokens for example {i + 1}: remove the example, or "
                "use another checkpoint."
            )
        num_tokens += len(tokens)
        num_unknown += tokens.count(tokenizer.unk_token_id)
    if num_unknown >= MAX_UNKNOWN * num_tokens:
        raise InputError(
            f"The tokenizer of `--model_name_or_path` does not fit the examples, as {num_unknown / num_tokens:.0%} of "
            "the tokens are unknown: use a checkpoint with the tokenizer of its training."
        )
    if num_unknown >= MANY_UNKNOWN * num_tokens:
        logger.warning_once(
            f"The tokenizer does not know {num_unknown / num_tokens:.0%} of the tokens in the examples."
        )
    # Encoder-decoder models classify at the last end token and need equally many in every row.
    if config.is_encoder_decoder and len({row["input_ids"].count(config.eos_token_id) for row in rows} | {0}) != 2:
        raise InputError(
            "The tokenizer of `--model_name_or_path` must give every example equally many end tokens, as an "
            "encoder-decoder model classifies there. Use one that adds an end token to each text."
        )


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """
    Return a collator that pads a batch to its longest example; for a Reformer, to its fixed length or to a multiple of
    its chunk length.
    """
    config, options = model.config, {}
    if config.model_type == "reformer" and config.axial_pos_embds:
        options = {"padding": "max_length", "max_length": prod(config.axial_pos_shape)}
    elif config.model_type == "reformer":
        chunks = (getattr(config, f"{kind}_attn_chunk_length") for kind in set(config.attn_layers))
        options = {"pad_to_multiple_of": lcm(*chunks)}
    return DataCollatorWithPadding(tokenizer, **options)
