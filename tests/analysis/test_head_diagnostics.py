"""Head diagnostics, against values computed token by token and draft by draft."""

import copy
import itertools
import math
import statistics
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset

from ngram_wdr_hf.analysis.head_diagnostics import (
    GainBin,
    count_tokens,
    find_sentence_ends,
    head_diagnostics,
)
from ngram_wdr_hf.data.pair_batches import TOKENIZED, PairBatches
from ngram_wdr_hf.data.token_stream import EvaluationWindows, TokenStream
from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer, train_word_tokenizer
from tests.support import reference
from tests.support.options import END, PAD
from tests.support.tiny import VOCAB_SIZE
from tests.support.trained import Language, trained_model, trained_seq2seq

WINDOW = 12
SENTENCE_ENDS = [END, 5, 9]


def exact(model, **fields):
    """Return a copy in double precision, with changed configuration fields."""
    model = copy.deepcopy(model).double()
    for name, value in fields.items():
        setattr(model.config, name, value)
    return model


def windows(length: int = 70, stride: int | None = None, seed: int = 3) -> EvaluationWindows:
    tokens = Language(seed).text(length).numpy().astype(np.int32)
    return EvaluationWindows(TokenStream(tokens, length), WINDOW, stride, start_token_id=END)


def pairs(count: int = 5) -> PairBatches:
    language = Language(seed=4)
    rows = [[side.tolist() for side in language.pair()] for _ in range(count)]
    columns = zip(*((source, target, len(target), False) for source, target in rows), strict=True)
    return PairBatches(Dataset.from_dict(dict(zip(TOKENIZED, columns, strict=True)), TOKENIZED), 48, PAD)


def best_token(logits, vocabulary=None) -> int:
    return int(logits.argmax()) if vocabulary is None else vocabulary[int(logits[vocabulary].argmax())]


@torch.no_grad()
def accepted_drafts(model, read, next_token, ensemble_lambda=0.0, vocabulary=None, **inputs):
    """Return the drafts of all heads after `read` and `next_token`, and how many of them are accepted."""
    drafts, text = [], torch.cat([read, read.new_tensor([next_token])])[None]
    hidden = reference.hidden_states(model, read[None], **inputs)
    for n in range(1, model.config.ngram_size):
        prediction = reference.head_prediction(model, hidden, text, 0, len(read) - 1, n)
        drafts.append(best_token(reference.logits_of(model, prediction), vocabulary))
        text = torch.cat([text, text.new_tensor([[drafts[-1]]])], dim=1)
    logits = reference.ensembled_logits(model, text, ensemble_lambda, **inputs)[0]
    choices = [int(logits[len(read) + i].argmax()) for i in range(len(drafts))]
    is_accepted = [draft == token for draft, token in zip(drafts, choices, strict=True)]
    return drafts, [*is_accepted, False].index(False)


def rows_of(text):
    """Yield decoder inputs, next tokens and encoder inputs, row by row."""
    for item in text:
        if isinstance(text, EvaluationWindows):
            yield item["input_ids"], item["shift_labels"], {}
            continue
        for source, mask, labels in zip(item["input_ids"], item["attention_mask"], item["labels"], strict=True):
            labels = labels[labels != -100]
            yield torch.cat([labels.new_tensor([PAD]), labels[:-1]]), labels, {"encoder_ids": source[mask == 1][None]}


@torch.no_grad()
def expected(model, text, ensemble_lambda, vocabulary=None):
    """Return NLLs and hits by depth, drafts by head, and each target with its gain."""
    size, own = model.config.ngram_size, model.config.ensemble_lambda
    nlls, hits, drafted, accepted = ([[] for _ in range(size)] for _ in range(4))
    gains = []
    for tokens, targets, inputs in rows_of(text):
        hidden = reference.hidden_states(model, tokens[None], **inputs)
        ensembled = reference.ensembled_logits(model, tokens[None], ensemble_lambda, **inputs)[0]
        for t, n in itertools.product(range(len(tokens)), range(size)):
            if t + n >= len(tokens) or targets[t + n] == -100:
                continue
            prediction = hidden[0, t] if n == 0 else reference.head_prediction(model, hidden, tokens[None], 0, t, n)
            logits = reference.logits_of(model, prediction)
            nlls[n].append(float(F.cross_entropy(logits, targets[t + n])))
            hits[n].append(int(logits.argmax()) == int(targets[t + n]))
            if n == 0:
                gains.append((int(targets[t]), nlls[0][-1] - float(F.cross_entropy(ensembled[t], targets[t]))))
        for t in range(len(tokens) - 1):
            drafts, num_accepted = accepted_drafts(model, tokens[: t + 1], tokens[t + 1], own, vocabulary, **inputs)
            for n in range(1, min(size, len(tokens) - t)):
                # The model's choice is known where all earlier drafts are accepted and equal the text.
                is_known = all(int(targets[t + m]) == drafts[m - 1] for m in range(1, n))
                if targets[t + n] != -100 and num_accepted >= n - 1 and is_known:
                    drafted[n].append(1)
                    accepted[n].append(num_accepted >= n)
    return nlls, hits, drafted, accepted, gains


def check_heads(found, nlls, hits, drafted, accepted) -> None:
    assert found.num_targets == [len(row) for row in nlls]
    assert found.nlls == pytest.approx([statistics.fmean(row) for row in nlls], rel=1e-9)
    assert found.perplexities == pytest.approx([math.exp(statistics.fmean(row)) for row in nlls], rel=1e-9)
    assert found.accuracies == pytest.approx([statistics.fmean(row) for row in hits], rel=1e-12)
    assert found.num_drafts == [len(row) for row in drafted[1:]]
    assert found.num_accepted == [sum(row) for row in accepted[1:]]


def check_bins(bins, labelled_gains) -> None:
    """`labelled_gains`: pairs of label and gain."""
    by_label = {label: [gain for name, gain in labelled_gains if name == label] for label, _ in labelled_gains}
    assert {gain.label: gain.num_tokens for gain in bins} == {name: len(gains) for name, gains in by_label.items()}
    for label, _, mean, error in bins:
        gains = by_label[label]
        assert mean == pytest.approx(statistics.fmean(gains), abs=1e-12)
        expected_error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else math.nan
        assert error == pytest.approx(expected_error, abs=1e-9, nan_ok=True)


def label_of(value: int, firsts: list[int]) -> str:
    first, end = max(first for first in firsts if first <= value), min((f for f in firsts if f > value), default=None)
    return f"{first:,}+" if end is None else f"{first:,}" if end == first + 1 else f"{first:,}–{end - 1:,}"


def place_of(position: int) -> str:
    return label_of(position, [1, 2, 3, 4, 5, 9, 17, 33])


@pytest.mark.parametrize(("ngram_size", "target", "stride"), [(4, "wdr", None), (4, "wdr", 5), (3, "simple", 5)])
def test_running_text(ngram_size, target, stride, monkeypatch):
    monkeypatch.setattr(sys.modules[count_tokens.__module__], "chunk_rows", lambda weight: 3)
    model, text = exact(trained_model(ngram_size, target)), windows(stride=stride)
    training_counts = torch.arange(VOCAB_SIZE).numpy() * 1000
    found = head_diagnostics(model, text, 0.3, SENTENCE_ENDS, training_counts, batch_size=2)
    nlls, hits, drafted, accepted, gains = expected(model, text, 0.3)
    check_heads(found, nlls, hits, drafted, accepted)
    assert sum(found.num_accepted) > len(found.num_accepted), "the test needs accepted drafts"
    assert found.ensemble == 0.3
    check_bins([found.gain], [("all", gain) for _, gain in gains])
    labelled, position = [], 0
    for token, gain in gains:
        position += 1
        labelled.append((place_of(position), gain))
        position = 0 if token in SENTENCE_ENDS else position
    check_bins(found.gain_by_place, labelled)
    assert len(found.gain_by_place) > 4
    counts = [0, 10, 100, 1000, 10_000, 100_000]
    check_bins(found.gain_by_frequency, [(label_of(1000 * token, counts), gain) for token, gain in gains])
    assert len(found.gain_by_frequency) > 2


def test_sentence_pairs():
    model, text = exact(trained_seq2seq("marian", "wdr")), pairs()
    assert len(text) > 1
    found = head_diagnostics(model, text, 0.4)
    nlls, hits, drafted, accepted, gains = expected(model, text, 0.4)
    check_heads(found, nlls, hits, drafted, accepted)
    assert sum(found.num_accepted[1:]) > 0
    check_bins([found.gain], [("all", gain) for _, gain in gains])
    numbers = [position for _, targets, _ in rows_of(text) for position in range(1, len(targets) + 1)]
    check_bins(found.gain_by_place, [(place_of(n), gain) for n, (_, gain) in zip(numbers, gains, strict=True)])


def test_acceptance_is_that_of_the_models_own_ensemble_and_draft_vocabulary():
    text = windows(60)
    plain, own = (exact(trained_model(4, "wdr"), ensemble_lambda=value) for value in (0.0, 0.9))
    found, without = head_diagnostics(own, text), head_diagnostics(plain, text)
    assert found.ensemble == 0.9
    check_heads(found, *expected(own, text, 0.9)[:-1])
    assert found.num_accepted != without.num_accepted and found.nlls == without.nlls
    assert without.gain == GainBin("all", 60, 0.0, 0.0)
    counts = count_tokens(text, VOCAB_SIZE)
    assert counts.tolist() == [text.stream[:].tolist().count(token) for token in range(VOCAB_SIZE)]
    vocabulary = counts.argsort()[-12:].tolist()
    plain.ngram_set_draft_tokens(vocabulary)
    restricted = head_diagnostics(plain, text)
    check_heads(restricted, *expected(plain, text, 0.0, vocabulary)[:-1])
    assert restricted.num_accepted != without.num_accepted and restricted.accuracies == without.accuracies


def test_sentence_ends():
    tokenizer = train_word_tokenizer(['" Go ! " he said ." Mr. Wu (?) left .) 3.5 , etc.\nIs it ? .'])
    ends = {tokenizer.convert_ids_to_tokens(token) for token in find_sentence_ends(tokenizer)}
    assert ends == {"<eos>", "!", "?", '."', ".)", "."}
    tokenizer = train_bpe_tokenizer(["One. Two. Three?\n\nFour. Five (six?). Seven."] * 20, 300)
    texts = [tokenizer.decode([token]) for token in find_sentence_ends(tokenizer)]
    assert {"<eos>", ".", "!", "?", "\n"} <= set(texts)
