"""Translations of the training sources by the model itself, instead of references."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.pair_batches import TOKENIZED, pad, side_lengths
from ..common.self_generated import SelfGeneration, generate_rows, write_rows
from .translator import longest_translation


def translate_sources(
    model: PreTrainedModel,
    pairs: Dataset,
    options: SelfGeneration,
    pad_token_id: int,
    folder: Path,
    shows_progress: bool = True,
) -> list[np.ndarray]:
    r"""
    Let a model translate `options.amount` sources, or all if there are fewer, as [`write_rows`] keeps them in
    `folder`. Return a row per translation: the index of its source in `pairs`, then its tokens up to and including the
    end token.

    Args:
        model (`PreTrainedModel`): The model.
        pairs (`Dataset`): The output of `tokenize_pairs`.
        options (`SelfGeneration`): How to translate.
        pad_token_id (`int`): Padding of the sources.
        folder (`Path`): The folder of the translations.
        shows_progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar.
    """
    options = replace(options, amount=min(options.amount, len(pairs)))
    batches = _batches(pairs, options)

    def write_part(part: int) -> list[list[int]]:
        indices = batches[part]
        sources = pairs[indices]["input_ids"]
        inputs = {
            "input_ids": pad(sources, pad_token_id),
            "attention_mask": pad([[1] * len(ids) for ids in sources], 0),
        }
        limit = longest_translation(inputs["input_ids"], options.max_length)
        # Column 0 is the decoder's start token.
        rows = generate_rows(model, inputs, 1, limit, options.temperature)
        return [[i, *row] for i, row in zip(indices.tolist(), rows, strict=True)]

    return write_rows(model, write_part, len, "sentences", options, folder, shows_progress).rows[: options.amount]


def _batches(pairs: Dataset, options: SelfGeneration) -> list[np.ndarray]:
    """
    Return the indices of all pairs in batches with sources of similar length, in random order: the first batches are a
    sample of the pairs. They do not depend on how many are translated, so that more can be translated later.
    """
    chance = np.random.default_rng(options.seed)
    shuffled = chance.permutation(len(pairs))
    order = shuffled[np.argsort(side_lengths(pairs)[shuffled, 0], kind="stable")]
    batches = np.split(order, range(options.batch_size, len(order), options.batch_size))
    return [batches[i] for i in chance.permutation(len(batches))]


def with_translations(
    pairs: Dataset, rows: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase, keeps_others: bool
) -> Dataset:
    """
    Return tokenized pairs with the translations of [`translate_sources`] as targets, followed by the other pairs, if
    `keeps_others`.
    """
    indices = [int(row[0]) for row in rows]
    targets = [row[1:].tolist() for row in rows]
    translated = pairs[indices]
    texts = tokenizer.batch_decode(targets, skip_special_tokens=True)
    own = Dataset.from_dict(
        {**translated, "labels": targets, "num_words": [len(text.split()) for text in texts]}, features=TOKENIZED
    )
    others = np.setdiff1d(np.arange(len(pairs)), indices)
    return concatenate_datasets([own, pairs.select(others)]) if keeps_others and len(others) else own
