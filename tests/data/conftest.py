"""English-German pairs shared by several test files."""

import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.data.english_german import english_german
from ngram_wdr_hf.data.pairs import texts_of_pairs
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer


@pytest.fixture(scope="session")
def pairs() -> Dataset:
    return english_german({"train": 400})["train"]


@pytest.fixture(scope="session")
def tokenizer(pairs) -> PreTrainedTokenizerFast:
    return train_sentence_tokenizer(texts_of_pairs(pairs), 500)
