"""
Small trained models. Some of their heads' drafts are accepted and some rejected; with random weights, hardly any would
be accepted.

The training sentences have words of two to four tokens. The next word depends on the last two words, with some
randomness; some words often end a sentence.
"""

from collections.abc import Callable
from functools import cache

import torch
from transformers import PreTrainedModel

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from tests.support.options import END, PAD
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, tiny_model

WIDTH, POSITIONS = 32, 40
NUM_WORDS, NUM_LAST_WORDS, LONGEST_SENTENCE = 12, 3, 10


class Language:
    """A seeded generator of sentences. All seeds share the words and the grammar."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        grammar = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 5, (NUM_WORDS,), generator=grammar).tolist()
        self.words = [torch.randint(2, VOCAB_SIZE, (length,), generator=grammar).tolist() for length in lengths]
        # For each pair of words: one likely next word and two possible ones.
        self.followers = torch.rand(NUM_WORDS, NUM_WORDS, NUM_WORDS, generator=grammar).argsort(-1)[..., :3].tolist()

    def number(self, low: int, high: int) -> int:
        """Return a random integer from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def sentence(self, first: int, second: int) -> list[int]:
        """Return the tokens of a sentence with these first words, and the end token."""
        words = [first, second]
        while len(words) < LONGEST_SENTENCE and (words[-1] >= NUM_LAST_WORDS or self.number(1, 4) == 1):
            words.append(self.followers[words[-2]][words[-1]][max(self.number(-5, 2), 0)])
        return [token for word in words for token in self.words[word]] + [END]

    def text(self, length: int) -> torch.Tensor:
        """Return `length` tokens of consecutive sentences."""
        tokens = []
        while len(tokens) < length:
            tokens += self.sentence(self.number(0, NUM_WORDS - 1), self.number(0, NUM_WORDS - 1))
        return torch.tensor(tokens[:length])

    def prompt(self, longest: int) -> torch.Tensor:
        """Return a piece of text of random length up to `longest`, without an end token."""
        length = self.number(1, longest)
        text = self.text(3 * longest)
        return text[text != END][-length:]

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a source and its translation. Two source tokens determine the first words of the translation."""
        first, second = self.number(0, NUM_WORDS - 1), self.number(0, NUM_WORDS - 1)
        distractors = [self.number(2 + 2 * NUM_WORDS, VOCAB_SIZE - 1) for _ in range(self.number(0, 6))]
        source = torch.tensor([2 + first, 2 + NUM_WORDS + second, *distractors])
        return source, torch.tensor(self.sentence(first, second))


def fit(model: PreTrainedModel, batch: Callable[[], dict[str, torch.Tensor]], steps: int) -> PreTrainedModel:
    optimizer = torch.optim.Adam(model.double().train().parameters(), lr=1e-2, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch()).loss.backward()
        optimizer.step()
    for parameter in model.parameters():
        # Round the weights, so that machine-dependent digits do not change the texts.
        parameter.data = (parameter.data * 2**10).round() / 2**10
    return model.float().eval()


@cache
def trained_model(ngram_size: int, ngram_target: str, reads: str = "hidden") -> WDRNgramGPT2LMHeadModel:
    """Train a GPT-2 on texts of a `Language`."""
    heads = {"ngram_size": ngram_size, "ngram_target": ngram_target, "ngram_head_reads": reads}
    model = tiny_model(**heads, n_embd=WIDTH, n_positions=POSITIONS, initializer_range=0.1)
    language = Language(seed=1)
    texts = torch.stack([language.text(32) for _ in range(512)])

    def batch() -> dict[str, torch.Tensor]:
        ids = texts[[language.number(0, len(texts) - 1) for _ in range(16)]]
        return {"input_ids": ids, "labels": ids}

    return fit(model, batch, steps=70)


def pad(rows: list[torch.Tensor], value: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


# Changes to the sizes of `SEQ2SEQ` for fast learning.
SEQ2SEQ_FIELDS = {
    "marian": {"ngram_size": 4, "init_std": 0.1, "scale_embedding": True, "max_position_embeddings": POSITIONS},
    "bart": {"ngram_size": 3, "init_std": 0.1, "max_position_embeddings": POSITIONS},
    "t5": {"ngram_size": 5, "scale_decoder_outputs": False},
}


@cache
def trained_seq2seq(name: str, ngram_target: str) -> PreTrainedModel:
    """Train an encoder-decoder model, by its name in `SEQ2SEQ`, on pairs of a `Language`."""
    kind = SEQ2SEQ[name]
    torch.manual_seed(0)
    fields = {**kind.sizes, **SEQ2SEQ_FIELDS[name], "ngram_target": ngram_target, "d_model": WIDTH}
    model = kind.ours(kind.ours.config_class(**fields))
    if name == "t5":
        # With T5's large initial embeddings, WDR heads would learn slowly.
        model.get_input_embeddings().weight.data *= 0.2
    language = Language(seed=1)
    pairs = [language.pair() for _ in range(512)]

    def batch() -> dict[str, torch.Tensor]:
        sources, targets = zip(*[pairs[language.number(0, len(pairs) - 1)] for _ in range(16)], strict=True)
        sources = pad(sources, PAD)
        return {"input_ids": sources, "attention_mask": (sources != PAD).long(), "labels": pad(targets, -100)}

    return fit(model, batch, steps=110)
