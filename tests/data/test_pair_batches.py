"""Pairs as tokens and batches: every count, every padded value and every score against a slow loop."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.grammar import english_german
from ngram_wdr_hf.data.pair_batches import (
    TOKENIZED,
    PairBatches,
    cut_into_batches,
    encode_sources,
    keep_lengths,
    only,
    pad,
    side_lengths,
    tokenize_pairs,
)
from ngram_wdr_hf.data.pairs import texts_of_pairs
from ngram_wdr_hf.data.tokenizer import train_sentence_tokenizer
from ngram_wdr_hf.evaluation.scores import score

from tests.support.reference import head_prediction, hidden_states, logits_of
from tests.support.tiny import VOCAB_SIZE, tiny_seq2seq

PAD, IGNORED = 1, -100
LAMBDAS = [0.0, 0.3, 1.0]
SENTENCES = [
    "",
    "a",
    "the cat saw the dog",
    "Die Mädchen grüßen übermorgen Öl und Äpfel.",
    "naïve café, 日本語, עברית, 🤗👩‍👩‍👧",
    "two  spaces, a tab\t.",
    "do n't , ca n't . `` ''",
    "\x00\x7f\x85\xa0\u2028\ufffd",
    "".join(map(chr, range(0x21, 0x300))),
]


@pytest.fixture(scope="module")
def grammar() -> Dataset:
    return english_german({"train": 400})["train"]


@pytest.fixture(scope="module")
def tokenizer(grammar) -> PreTrainedTokenizerFast:
    return train_sentence_tokenizer(texts_of_pairs(grammar), 500)


def tokens_of(lengths, seed: int = 0) -> Dataset:
    """Random pairs of these lengths; no two rows are alike."""
    chance = np.random.default_rng(seed)
    ids = [[chance.integers(2, VOCAB_SIZE, length).tolist() for length in pair] for pair in lengths]
    assert len({str(pair) for pair in ids}) == len(ids)
    rows = {
        "input_ids": [source for source, _ in ids],
        "labels": [target for _, target in ids],
        "num_words": [i + 1 for i in range(len(ids))],
        "is_truncated": [False] * len(ids),
    }
    return Dataset.from_dict(rows, TOKENIZED)


def random_lengths(count: int, longest: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, longest + 1, (count, 2))


def realistic_lengths(count: int, seed: int = 0) -> np.ndarray:
    """Mostly short sentences and a few long ones, as corpora have them; a translation is about as long."""
    chance = np.random.default_rng(seed)
    sources = chance.lognormal(math.log(22), 0.6, count).clip(2, 200)
    targets = (sources * chance.normal(1.05, 0.15, count)).clip(2, 200)
    return np.stack([sources, targets], axis=1).astype(int)


def unpadded(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch."""
    return [
        (source[mask.bool()].tolist(), target[target != IGNORED].tolist())
        for source, mask, target in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True)
    ]


def pairs_of(rows: Dataset) -> list[tuple[list[int], list[int]]]:
    return list(zip(rows["input_ids"][:], rows["labels"][:], strict=True))


def all_pairs(batches) -> list[tuple[list[int], list[int]]]:
    return [pair for batch in batches for pair in unpadded(batch)]


def same(batch, other) -> bool:
    return batch.keys() == other.keys() and all(torch.equal(batch[name], other[name]) for name in batch)


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_are_ended_and_decode_back_exactly(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.pad_token_id not in ids
    # A first word is tokenized as any other, with a space before it, which is no part of the text.
    assert tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ") == text
    assert tokenizer(text_target=text)["input_ids"] == ids
    assert tokenizer([text, "a"])["input_ids"][0] == ids


@pytest.mark.parametrize("word", ["the", "Haus", "über", "🤗", "unheard-of", "1"])
def test_a_word_has_the_same_tokens_everywhere(tokenizer, word):
    tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
    first, inside, last = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f"{word} a", f"a {word} a", f"a {word}")
    )
    a = tokenizer("a", add_special_tokens=False)["input_ids"]
    assert (first, inside, last) == (tokens + a, a + tokens + a, a + tokens)


def test_one_vocabulary_for_both_languages(grammar, tokenizer):
    assert len(tokenizer) == 500
    assert tokenizer.pad_token == "<pad>" and tokenizer.eos_token == "<eos>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    alone = train_sentence_tokenizer(grammar["source"][:], 500)
    mean_length = [np.mean([len(ids) for ids in t(grammar["target"][:])["input_ids"]]) for t in (tokenizer, alone)]
    # Trained on German, too, it cuts German into fewer pieces.
    assert mean_length[0] < 0.8 * mean_length[1]


def test_tokenizer_needs_a_token_for_each_byte():
    assert len(train_sentence_tokenizer(["a b"], 258)) == 258
    with pytest.raises(
        InputError, match=r"^A BPE tokenizer has at least 258 tokens, .*`--vocab_size`, which is 257\.$"
    ):
        train_sentence_tokenizer(["a b"], 257)


def test_tokenizer_survives_saving(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.eos_token_id == tokenizer.eos_token_id and loaded.pad_token_id == tokenizer.pad_token_id
    ids = tokenizer(SENTENCES)["input_ids"]
    assert loaded(SENTENCES)["input_ids"] == loaded(text_target=SENTENCES)["input_ids"] == ids
    assert loaded.batch_decode(ids) == tokenizer.batch_decode(ids)
    # By this, tokenized pairs are found again.
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


class TwoLanguages:
    """A tokenizer that tells sources from targets: a token is a word's length, negative for targets; 0 ends."""

    is_fast = False

    def __call__(self, text=None, text_target=None, **options):
        sign, texts = (1, text) if text_target is None else (-1, text_target)
        room = options["max_length"] - 1 if options.get("truncation") else None
        return {"input_ids": [[*[sign * len(word) for word in line.split()][:room], 0] for line in texts]}


@pytest.mark.parametrize(
    ("longest", "sources", "targets", "is_truncated"),
    [
        (None, [[1, 2, 3, 4, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (5, [[1, 2, 3, 4, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (4, [[1, 2, 3, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [True, False]),
        (3, [[1, 2, 0], [5, 0]], [[-1, 0], [-1, -2, 0]], [True, True]),
        (1, [[0], [0]], [[0], [0]], [True, True]),
    ],
)
def test_tokenized_pairs(longest, sources, targets, is_truncated):
    rows = Dataset.from_dict({"source": ["a bb ccc dddd", "eeeee"], "target": ["a", " a bb  ccc "]})
    tokens = tokenize_pairs(rows, TwoLanguages(), "train", longest)
    assert tokens.to_dict() == {
        "input_ids": sources,
        "labels": targets,
        "num_words": [1, 3],
        "is_truncated": is_truncated,
    }
    assert encode_sources(rows["source"][:], TwoLanguages(), "test", longest)[0] == sources


def test_prefix_stands_before_sources_only():
    rows = Dataset.from_dict({"source": ["ccc", ""], "target": ["a", "bb"]})
    tokens = tokenize_pairs(rows, TwoLanguages(), "train", prefix="to German: ")
    assert tokens["input_ids"][:] == [[2, 7, 3, 0], [2, 7, 0]]
    assert tokens["labels"][:] == [[-1, 0], [-2, 0]] and tokens["num_words"][:] == [1, 1]
    assert encode_sources(["ccc"], TwoLanguages(), "test", prefix="to German: ") == ([[2, 7, 3, 0]], 0)
    # Cut, it keeps its place.
    assert encode_sources(["ccc"], TwoLanguages(), "test", 3, "to German: ") == ([[2, 7, 0]], 1)


def test_processes_give_the_same_tokens(grammar, tokenizer):
    rows = grammar.select([*range(400)] * 5)
    tokens = tokenize_pairs(rows, tokenizer, "train", longest=12)
    assert tokens.to_dict() == tokenize_pairs(rows, tokenizer, "train", longest=12, num_workers=2).to_dict()
    ids = tokenizer(grammar["target"][:])["input_ids"]
    assert tokens["labels"][:400] == [row if len(row) <= 12 else [*row[:11], row[-1]] for row in ids]
    assert {row[-1] for row in tokens["labels"][:]} == {tokenizer.eos_token_id}
    assert tokens["num_words"][:400] == [len(text.split()) for text in grammar["target"][:]]


def test_tokenizer_of_another_language():
    no_unknown = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=no_unknown)
    for pair in ({"source": ["a"], "target": ["b"]}, {"source": ["b"], "target": ["a"]}):
        with pytest.raises(InputError, match=r"^The tokenizer cannot read the validation set \("):
            tokenize_pairs(Dataset.from_dict(pair), tokenizer, "validation")
    with pytest.raises(InputError, match=r"^The tokenizer cannot read the test set \("):
        encode_sources(["b"], tokenizer, "test")


LENGTHS = [(1, 1), (4, 2), (2, 4), (5, 2), (2, 5), (9, 8), (3, 1)]


@pytest.mark.parametrize(
    ("longest", "ratio", "kept"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6]),
        (9, None, [0, 1, 2, 3, 4, 5, 6]),
        (8, None, [0, 1, 2, 3, 4, 6]),
        (4, None, [0, 1, 2, 6]),
        (0, None, []),
        (None, 1.0, [0]),
        (None, 2.0, [0, 1, 2, 5]),
        (None, 2.5, [0, 1, 2, 3, 4, 5]),
        (None, 2.49, [0, 1, 2, 5]),
        (8, 2.0, [0, 1, 2]),
    ],
)
def test_lengths_that_are_kept(longest, ratio, kept):
    tokens = tokens_of(LENGTHS)
    assert side_lengths(tokens).tolist() == [list(pair) for pair in LENGTHS]
    rows = keep_lengths(tokens, longest, ratio)
    assert pairs_of(rows) == [pairs_of(tokens)[i] for i in kept]
    assert rows["num_words"][:] == [i + 1 for i in kept]
    if kept:
        # What was left out is not measured either.
        assert side_lengths(rows).tolist() == [list(LENGTHS[i]) for i in kept]


def slow_batches(lengths: list[int], batch_tokens: int, order: list[int]) -> list[list[int]]:
    """Row by row: into the last batch if it stays small enough, else into a new one."""
    batches = [[order[0]]]
    for i in order[1:]:
        grown = [*batches[-1], i]
        if len(grown) * max(lengths[k] for k in grown) <= batch_tokens:
            batches[-1] = grown
        else:
            batches.append([i])
    return batches


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_those_of_the_slow_loop(seed):
    chance = np.random.default_rng(seed)
    count, longest = chance.integers(1, 80), chance.integers(1, 40)
    lengths = chance.integers(1, longest + 1, count)
    batch_tokens = int(chance.integers(1, 4 * longest + 1))

    def size(batch):
        return len(batch) * lengths[batch].max()

    for order in (chance.permutation(count), np.argsort(lengths), np.argsort(-lengths)):
        batches = cut_into_batches(lengths, batch_tokens, order)
        assert [batch.tolist() for batch in batches] == slow_batches(lengths.tolist(), batch_tokens, order.tolist())
        assert np.concatenate(batches).tolist() == order.tolist()
        assert all(size(batch) <= batch_tokens or len(batch) == 1 for batch in batches)
        for batch, following in itertools.pairwise(batches):
            assert size(np.concatenate([batch, following])) > batch_tokens


@pytest.mark.parametrize("batch_tokens", [1, 7, 30, 100, 10_000])
def test_every_pair_once_and_every_value(batch_tokens):
    tokens = tokens_of(random_lengths(150, 20))
    batches = PairBatches(tokens, batch_tokens, PAD)
    assert sorted(all_pairs(batches)) == sorted(pairs_of(tokens))
    assert len(list(batches)) == len(batches)
    assert batches.num_words == 150 * 151 / 2
    for batch in batches:
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        (count, width), (rows, target_width) = batch["input_ids"].shape, batch["labels"].shape
        assert rows == count and batch["attention_mask"].shape == (count, width)
        assert count * max(width, target_width) <= batch_tokens or count == 1
        pairs = unpadded(batch)
        # No wider than need be.
        assert width == max(len(source) for source, _ in pairs)
        assert target_width == max(len(target) for _, target in pairs)
        for row, (source, target) in enumerate(pairs):
            assert batch["input_ids"][row].tolist() == source + [PAD] * (width - len(source))
            assert batch["attention_mask"][row].tolist() == [1] * len(source) + [0] * (width - len(source))
            assert batch["labels"][row].tolist() == target + [IGNORED] * (target_width - len(target))
    assert {tensor.dtype for tensor in batches[0].values()} == {torch.long}
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_a_long_pair_is_a_batch_of_its_own():
    tokens = tokens_of([(3, 3), (50, 2), (3, 2), (2, 40), (2, 3)])
    batches = list(PairBatches(tokens, 20, PAD))
    shapes = sorted((tuple(batch["input_ids"].shape), tuple(batch["labels"].shape)) for batch in batches)
    assert ((1, 50), (1, 2)) in shapes and ((1, 2), (1, 40)) in shapes
    assert sorted(all_pairs(batches)) == sorted(pairs_of(tokens))
    (one,) = PairBatches(tokens_of([(9, 4)]), 5, PAD)
    assert one["input_ids"].shape == (1, 9) and one["attention_mask"].tolist() == [[1] * 9]


def wasted(batches) -> float:
    """The share of padding, by counting."""
    real = sum(int(batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum()) for batch in batches)
    return 1 - real / sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)


def test_little_is_padding():
    lengths = realistic_lengths(3000)
    tokens = tokens_of(lengths)
    batches = PairBatches(tokens, 2048, PAD)
    assert wasted(batches) == pytest.approx(batches.padding_share)
    assert batches.padding_share < 0.1
    in_file_order = cut_into_batches(lengths.max(1), 2048, np.arange(3000))
    padded = sum(len(batch) * lengths[batch].max(0).sum() for batch in in_file_order)
    assert 1 - lengths.sum() / padded > 4 * batches.padding_share
    assert len(in_file_order) > 1.5 * len(batches)
    assert PairBatches(tokens_of([(4, 6)] * 10), 24, PAD).padding_share == 0


def test_sentences_of_the_grammar_need_little_padding(grammar, tokenizer):
    batches = PairBatches(tokenize_pairs(grammar, tokenizer, "train"), 1024, tokenizer.pad_token_id)
    assert wasted(batches) == pytest.approx(batches.padding_share)
    assert 0 < batches.padding_share < 0.1


def test_the_seed_says_which_pairs_meet():
    tokens = tokens_of(np.full((60, 2), 5))
    first, again, other = (PairBatches(tokens, 30, PAD, seed) for seed in (0, 0, 1))
    assert len(first) == len(again) == len(other) == 10
    assert all(same(batch, twin) for batch, twin in zip(first, again, strict=True))
    assert not any(same(batch, twin) for batch, twin in zip(first, other, strict=True))
    # Pairs of one length are mixed: they do not meet as they stand in the file.
    assert all_pairs(first) != pairs_of(tokens)
    assert sorted(all_pairs(other)) == sorted(pairs_of(tokens))


def test_batches_of_selected_pairs():
    tokens = tokens_of(random_lengths(40, 8))
    batches = PairBatches(keep_lengths(tokens, 5, None), 30, PAD)
    expected = [pair for pair in pairs_of(tokens) if max(map(len, pair)) <= 5]
    assert 0 < len(expected) < 40
    assert sorted(all_pairs(batches)) == sorted(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_in_a_data_loader(num_workers):
    tokens = tokens_of(random_lengths(80, 12))
    batches = PairBatches(tokens, 60, PAD)
    loaded = list(DataLoader(batches, batch_size=1, collate_fn=only, num_workers=num_workers))
    assert all(same(batch, twin) for batch, twin in zip(loaded, batches, strict=True))
    generator = torch.Generator().manual_seed(0)
    mixed = DataLoader(batches, 1, shuffle=True, collate_fn=only, num_workers=num_workers, generator=generator)
    epochs = [all_pairs(mixed) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(pairs_of(tokens))
    # Where processes are not forked, they are sent the batches.
    assert all(same(batch, twin) for batch, twin in zip(pickle.loads(pickle.dumps(batches)), batches, strict=True))


def test_only_one_batch_is_collated():
    batch = {"input_ids": torch.ones(1, 1)}
    assert only([batch]) is batch
    with pytest.raises(ValueError, match="too many values"):
        only([batch, batch])


def test_pad():
    padded = pad([[5, 6, 7], [], [8]], 3)
    assert padded.tolist() == [[5, 6, 7], [3, 3, 3], [8, 3, 3]] and padded.dtype == torch.long
    assert pad([[]], 3).shape == (1, 0)


@pytest.fixture(scope="module")
def pairs() -> Dataset:
    """Targets of a single token among them, of which no head has anything to say."""
    return tokens_of([*random_lengths(25, 9), (3, 1), (1, 1), (1, 2), (14, 3)])


@torch.no_grad()
def slow_scores(model, tokens: Dataset):
    """The NLL of all targets for each λ, and the mean NLL of the next word and of each head; one pair at a time."""
    sums = [0.0] * len(LAMBDAS)
    head_nlls = [[] for _ in range(model.config.ngram_size)]
    for source, target in pairs_of(tokens):
        source, target = torch.tensor([source]), torch.tensor([target])
        for i, value in enumerate(LAMBDAS):
            loss = model(source, labels=target, ensemble_lambda=value).loss
            sums[i] += float(loss) * target.shape[1]
        decoder_ids = torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), target], dim=1)
        hidden = hidden_states(model, decoder_ids[:, :-1], encoder_ids=source)
        for n in range(model.config.ngram_size):
            for t in range(target.shape[1] - n):
                state = hidden[0, t] if n == 0 else head_prediction(model, hidden, decoder_ids, 0, t, n)
                head_nlls[n].append(float(F.cross_entropy(logits_of(model, state), target[0, t + n])))
    return sums, [np.mean(nlls) for nlls in head_nlls]


@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_scores_are_those_of_single_pairs(pairs, target):
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3, ngram_target=target)
    sums, head_nlls = slow_scores(model, pairs)
    assert np.ptp(sums) > 1
    model.train()
    num_tokens = int(side_lengths(pairs)[:, 1].sum())
    for batch_tokens in (1, 20, 64, 100_000):
        batches = PairBatches(pairs, batch_tokens, PAD)
        calls = []
        # Windows at a time mean nothing here.
        scores = score(model, batches, LAMBDAS, batch_size=7, on_batch=lambda calls=calls: calls.append(None))
        assert len(calls) == len(batches) and model.training
        assert scores.nll_sums == pytest.approx(sums, rel=1e-9)
        assert scores.head_nlls == pytest.approx(head_nlls, rel=1e-9)
        assert (scores.num_tokens, scores.num_words) == (num_tokens, batches.num_words)
        assert scores.perplexities() == pytest.approx([math.exp(total / num_tokens) for total in sums])
        words = batches.num_words
        assert scores.perplexities("word") == pytest.approx([math.exp(total / words) for total in sums])
        assert scores.best_lambda == LAMBDAS[int(np.argmin(sums))]


@pytest.mark.parametrize("num_processes", [2, 3, 50])
def test_scores_do_not_depend_on_the_number_of_processes(pairs, num_processes):
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3)
    # A pair a batch: a prime number, which no number of processes divides.
    batches = PairBatches(pairs, 1, PAD)
    assert len(batches) == 29
    alone = score(model, batches, LAMBDAS, 1)
    shares, calls = [], []
    for index in range(num_processes):
        called, sums = [], []

        def keep(tensor, sums=sums):
            sums.append(tensor.clone())
            return tensor

        score(model, batches, LAMBDAS, 1, index, num_processes, keep, lambda called=called: called.append(None))
        shares.append(sums)
        calls.append(len(called))
    # As many batches everywhere, or processes would wait for each other.
    assert set(calls) == {math.ceil(len(batches) / num_processes)}
    together = iter([sum(parts) for parts in zip(*shares, strict=True)])
    scores = score(model, batches, LAMBDAS, 1, 0, num_processes, lambda _: next(together))
    assert scores.nll_sums == pytest.approx(alone.nll_sums, rel=1e-9)
    assert scores.head_nlls == pytest.approx(alone.head_nlls, rel=1e-9)
    assert (scores.num_tokens, scores.num_words) == (alone.num_tokens, alone.num_words)
    # One share alone is less.
    assert all(float(sums[0][0]) < alone.nll_sums[0] for sums in shares)
