"""Small texts, as files and as token streams."""

import random
from pathlib import Path

import numpy as np
from datasets import Dataset, IterableDataset

from ngram_wdr_hf.data.text import load_text_files
from ngram_wdr_hf.data.token_stream import TokenStream

TEXT = "the cat saw the <unk> dog\n\n the dog\tsaw it \n \nit saw the <unk>\n"
START = 1


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_lines(path: Path, count: int, seed: int = 0) -> str:
    """Write lines of zero to seven words."""
    chance = random.Random(seed)
    lines = (" ".join(chance.choices("abcdefghijkl", k=chance.randrange(8))) for _ in range(count))
    return write(path, "".join(f"{line}\n" for line in lines))


def load(path: str, streaming: bool = False) -> Dataset | IterableDataset:
    return load_text_files({"train": [path]}, streaming)["train"]


def stream_of(tokens) -> TokenStream:
    return TokenStream(np.asarray(tokens, dtype=np.int32), len(tokens))
