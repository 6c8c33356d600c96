"""Head diagnostics, against values computed token by token and draft by draft."""

import copy
import itertools
import math
import re
import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset

from ngram_wdr_hf.analysis import diagnostics, diagnostics_figures
from ngram_wdr_hf.analysis.diagnostics import (
    GainBin,
    count_tokens,
    draft_statistics,
    find_sentence_ends,
    head_diagnostics,
)
from ngram_wdr_hf.data.pair_batches import TOKENIZED, PairBatches
from ngram_wdr_hf.data.token_stream import EvaluationWindows, TokenStream
from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer, train_word_tokenizer
from ngram_wdr_hf.evaluation.scores import score
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.options import END, PAD
from tests.support.tiny import VOCAB_SIZE, plain_model, tiny_model
from tests.support.trained import Language, trained_model, trained_seq2seq

WINDOW = 12
SENTENCE_ENDS = [END, 5, 9]
CASES = pytest.mark.parametrize(("ngram_size", "target"), [(4, "wdr"), (3, "simple")])


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
    sources, targets = zip(*[language.pair() for _ in range(count)], strict=True)
    columns = {
        "input_ids": [row.tolist() for row in sources],
        "labels": [row.tolist() for row in targets],
        "num_words": [len(row) for row in targets],
        "is_truncated": [False] * count,
    }
    return PairBatches(Dataset.from_dict(columns, features=TOKENIZED), 48, PAD)


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
    by_label = {}
    for label, gain in labelled_gains:
        by_label.setdefault(label, []).append(gain)
    assert {gain.label: gain.num_tokens for gain in bins} == {name: len(gains) for name, gains in by_label.items()}
    for gain in bins:
        gains = by_label[gain.label]
        assert gain.mean == pytest.approx(statistics.fmean(gains), abs=1e-12)
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else math.nan
        assert gain.standard_error == pytest.approx(error, abs=1e-9, nan_ok=True)


def position_label(position: int) -> str:
    bounds = {"5–8": 8, "9–16": 16, "17–32": 32}
    return (
        str(position) if position <= 4 else next((label for label, last in bounds.items() if position <= last), "33+")
    )


@CASES
@pytest.mark.parametrize("stride", [None, 5])
def test_running_text(ngram_size, target, stride):
    model, text = exact(trained_model(ngram_size, target)), windows(stride=stride)
    found = head_diagnostics(model, text, 0.3, SENTENCE_ENDS, batch_size=2)
    nlls, hits, drafted, accepted, gains = expected(model, text, 0.3)
    check_heads(found, nlls, hits, drafted, accepted)
    assert sum(found.num_accepted) > len(found.num_accepted), "the test needs accepted drafts"

    assert found.ensemble == 0.3
    check_bins([found.gain], [("all", gain) for _, gain in gains])
    labelled, position = [], 0
    for token, gain in gains:
        position += 1
        labelled.append((position_label(position), gain))
        position = 0 if token in SENTENCE_ENDS else position
    check_bins(found.gain_by_place, labelled)
    assert len(found.gain_by_place) > 4
    # All counts are small here; another test has large ones.
    assert max(Counter(text.stream[:].tolist()).values()) < 10
    check_bins(found.gain_by_frequency, [("0–9", gain) for _, gain in gains])


def test_sentence_pairs():
    model, text = exact(trained_seq2seq("marian", "wdr")), pairs()
    assert len(text) > 1
    found = head_diagnostics(model, text, 0.4)
    nlls, hits, drafted, accepted, gains = expected(model, text, 0.4)
    check_heads(found, nlls, hits, drafted, accepted)
    assert sum(found.num_accepted[1:]) > 0
    check_bins([found.gain], [("all", gain) for _, gain in gains])
    numbers = [position for _, targets, _ in rows_of(text) for position in range(1, len(targets) + 1)]
    check_bins(found.gain_by_place, [(position_label(n), gain) for n, (_, gain) in zip(numbers, gains, strict=True)])


@CASES
def test_agrees_with_the_evaluation(ngram_size, target):
    model, text = trained_model(ngram_size, target), windows(200, stride=7)
    found = head_diagnostics(model, text, 0.2)
    scores = score(model, text, [0.0, 0.2], batch_size=3)
    assert found.nlls == pytest.approx(scores.head_nlls, rel=1e-5)
    assert found.num_targets[0] == scores.num_tokens
    difference = (scores.nll_sums[0] - scores.nll_sums[1]) / scores.num_tokens
    assert found.gain.mean == pytest.approx(difference, abs=1e-5)
    one = EvaluationWindows(text.stream, WINDOW, start_token_id=END)[0]
    with torch.no_grad():
        output = model(input_ids=one["input_ids"][None], shift_labels=one["shift_labels"][None])
    stream = TokenStream(text.stream.ids[:WINDOW], 1)
    alone = head_diagnostics(model, EvaluationWindows(stream, WINDOW, None, END))
    assert alone.nlls == pytest.approx(output.head_losses.tolist(), rel=1e-5)


def test_the_models_own_lambda_decides_acceptance():
    text = windows(60)
    plain, own = (exact(trained_model(4, "wdr"), ensemble_lambda=value) for value in (0.0, 0.9))
    found = head_diagnostics(own, text)
    assert found.ensemble == 0.9
    check_heads(found, *expected(own, text, 0.9)[:-1])
    without = head_diagnostics(plain, text)
    assert found.num_accepted != without.num_accepted
    assert found.nlls == without.nlls
    assert without.gain == GainBin("all", 60, 0.0, 0.0)


def test_drafts_come_from_the_draft_vocabulary():
    model, text = exact(trained_model(4, "wdr")), windows(60)
    everything = head_diagnostics(model, text)
    vocabulary = [token for token, _ in Counter(text.stream[:].tolist()).most_common(12)]
    model.ngram_set_draft_tokens(vocabulary)
    found = head_diagnostics(model, text)
    check_heads(found, *expected(model, text, 0.0, vocabulary)[:-1])
    assert found.num_accepted != everything.num_accepted
    assert found.accuracies == everything.accuracies


@CASES
def test_batches_and_chunks_change_nothing(ngram_size, target, monkeypatch):
    model, text = exact(trained_model(ngram_size, target)), windows(100, stride=9)
    one_by_one = head_diagnostics(model, text, 0.3, SENTENCE_ENDS, batch_size=1)
    sizes = []
    layer_call = diagnostics.LogitLayer.__call__
    monkeypatch.setattr(diagnostics, "chunk_rows", lambda weight: 3)
    monkeypatch.setattr(
        diagnostics.LogitLayer, "__call__", lambda self, rows: sizes.append(len(rows)) or layer_call(self, rows)
    )
    together = head_diagnostics(model, text, 0.3, SENTENCE_ENDS, batch_size=50)
    assert max(sizes) == 3
    assert replace(together, nlls=[], gain=None, gain_by_place=[], gain_by_frequency=[]) == replace(
        one_by_one, nlls=[], gain=None, gain_by_place=[], gain_by_frequency=[]
    )
    assert together.nlls == pytest.approx(one_by_one.nlls)
    for bins in ("gain_by_place", "gain_by_frequency"):
        for one, other in zip(getattr(together, bins), getattr(one_by_one, bins), strict=True):
            assert (one.label, one.num_tokens) == (other.label, other.num_tokens)
            assert one.mean == pytest.approx(other.mean, abs=1e-9)


def test_model_without_heads():
    model, text = tiny_model(ngram_size=1).double(), windows(40)
    found = head_diagnostics(model.train(), text, 0.5)
    assert model.training
    assert found.nlls == pytest.approx(score(model, text, [0.0], 4).head_nlls)
    assert (found.ensemble, found.num_drafts, found.acceptance, found.tokens_per_pass) == (0.0, [], [], 1.0)
    assert found.gain.mean == 0


@CASES
def test_drafts_in_generation(ngram_size, target):
    """The counts of `generate`, replayed with a forward pass for every draft and summed over rows."""
    model = exact(trained_model(ngram_size, target))
    model.generation_config.eos_token_id = None
    prompts = [Language(seed).prompt(10) for seed in (5, 6)]
    length, drafted, accepted, num_passes = 14, [0] * (ngram_size - 1), [0] * (ngram_size - 1), 0
    for prompt in prompts:
        # The prefill gives the first token.
        first = reference.ensembled_logits(model, prompt[None], 0)[0, -1].argmax()
        text, num_new = torch.cat([prompt, first[None]]), 1
        num_passes += 1
        while num_new < length:
            # A pass gives one token after the accepted drafts.
            depth = min(ngram_size - 1, length - num_new - 1)
            drafts, num_accepted = accepted_drafts(model, text[:-1], text[-1])
            num_accepted = min(num_accepted, depth)
            for n in range(depth):
                drafted[n] += 1
                accepted[n] += n < num_accepted
            text = torch.cat([text, torch.tensor(drafts[:num_accepted], dtype=torch.long)])
            text = torch.cat([text, reference.ensembled_logits(model, text[None], 0)[0, -1].argmax()[None]])
            num_new += num_accepted + 1
            num_passes += 1
    inputs = [{"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]} for row in prompts]
    found = draft_statistics(model, inputs, max_new_tokens=length)
    assert (found.num_drafted, found.num_accepted) == (drafted, accepted)
    assert (found.num_tokens, found.num_row_forwards) == (2 * length, num_passes)
    assert sum(accepted) > 0
    shares, num_checked = diagnostics_figures.acceptance_of(found)
    assert shares[0] == pytest.approx(accepted[0] / drafted[0])
    assert shares[1] == pytest.approx((accepted[1] / drafted[1]) / (accepted[0] / drafted[0]))
    assert num_checked[0] == drafted[0]


def test_bad_input():
    text = windows(40)
    with raises_naming(ValueError, "`model`", "GPT2LMHeadModel", "`with_ngram_heads`"):
        head_diagnostics(plain_model(), text)
    with raises_naming(ValueError, "`text`"):
        head_diagnostics(tiny_model(), EvaluationWindows(TokenStream(np.array([3], dtype=np.int32), 1), 4))
    with raises_naming(ValueError, "ensemble_lambda"):
        head_diagnostics(tiny_model(), text, ensemble_lambda=2.0)


def test_counts():
    stream = TokenStream(np.array([1, 2, 2, 2, 4], dtype=np.int32), 5)
    assert count_tokens(stream, 6).tolist() == [0, 1, 3, 0, 1, 0]
    assert count_tokens(EvaluationWindows(stream, 2), 6).tolist() == [0, 1, 3, 0, 1, 0]
    labels = [token for _, targets, _ in rows_of(pairs()) for token in targets.tolist()]
    assert count_tokens(pairs(), VOCAB_SIZE).tolist() == [labels.count(token) for token in range(VOCAB_SIZE)]


def test_training_counts_decide_the_bins():
    model, text = exact(trained_model(3, "simple")), windows(50)
    counts = torch.arange(VOCAB_SIZE) * 1000
    found = head_diagnostics(model, text, 0.3, token_counts=counts.numpy())
    _, _, _, _, gains = expected(model, text, 0.3)
    labels = ["0–9" if token == 0 else "1,000–9,999" if token < 10 else "10,000–99,999" for token, _ in gains]
    check_bins(found.gain_by_frequency, [(label, gain) for label, (_, gain) in zip(labels, gains, strict=True)])


def test_sentence_ends():
    tokenizer = train_word_tokenizer(["Is it ? It is . So !\n3.5 etc. are tokens"])
    ends = {tokenizer.convert_ids_to_tokens(token) for token in find_sentence_ends(tokenizer)}
    assert ends == {"<eos>", "?", ".", "!"}
    tokenizer = train_bpe_tokenizer(["One. Two. Three?\n\nFour. Five (six?). Seven."] * 20, 300)
    texts = [tokenizer.decode([token]) for token in find_sentence_ends(tokenizer)]
    assert {"<eos>", ".", "!", "?", "\n"} <= set(texts)
    assert all(text == "<eos>" or "\n" in text or not re.search(r"\w", text) for text in texts)
    tokenizer = train_word_tokenizer(['" Go ! " he said ." Mr. Wu (?) left .) 3 . ,'])
    ends = {tokenizer.convert_ids_to_tokens(token) for token in find_sentence_ends(tokenizer)}
    assert ends == {"<eos>", "!", '."', ".)", "."}


def test_modes_are_restored(found):
    """Generation and diagnostics run without dropout and restore all modes, also after an error."""
    model = exact(trained_model(4, "wdr"))
    without_dropout = draft_statistics(model.eval(), [{"input_ids": windows(20).stream[:8][None]}], max_new_tokens=9)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    with_dropout = draft_statistics(model, [{"input_ids": windows(20).stream[:8][None]}], max_new_tokens=9)
    assert with_dropout == without_dropout
    assert head_diagnostics(model, windows(90), 0.3, SENTENCE_ENDS) == found
    assert [module.training for module in model.modules()] == modes


def test_drafts_end_at_the_last_position():
    model = trained_model(4, "wdr")
    longest = model.config.n_positions
    prompt = {"input_ids": windows(longest + 20).stream[: longest - 5][None]}
    assert draft_statistics(model, [prompt], max_new_tokens=48).num_tokens == 5


@pytest.fixture(scope="module")
def found():
    return head_diagnostics(exact(trained_model(4, "wdr")), windows(90), 0.3, SENTENCE_ENDS)


def test_plots(found, tmp_path):
    plain = head_diagnostics(tiny_model(ngram_size=1), windows(90))
    by_name = {"plain": plain, "wdr": found}
    generated = diagnostics.SpeculationStatistics(100, 60, 60, [50, 40], [20, 4])
    left, right = diagnostics_figures.plot_heads(by_name, tmp_path / "heads.png").axes
    assert left.lines[1].get_ydata().tolist() == found.perplexities
    assert right.lines[1].get_ydata().tolist() == found.accuracies
    assert len(right.lines[0].get_ydata()) == 1
    assert (tmp_path / "heads.png").stat().st_size > 5000

    (axes,) = diagnostics_figures.plot_acceptance(by_name, {"wdr": generated}).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        f"wdr, text: {found.tokens_per_pass:.2f} tokens per pass",
        "wdr, generation: 1.67 tokens per pass",
    ]
    assert axes.containers[0].lines[0].get_ydata().tolist() == found.acceptance
    assert axes.containers[1].lines[0].get_ydata() == pytest.approx([0.4, 0.25])

    for by, bins in (("place", found.gain_by_place), ("frequency", found.gain_by_frequency)):
        (axes,) = diagnostics_figures.plot_gain(by_name, by).axes
        ((points, _, (bars,)),) = axes.containers
        assert points.get_ydata().tolist() == [gain.mean for gain in bins]
        ends = [segment[1, 1] for segment in bars.get_segments()]
        wanted = [gain.mean + 2 * gain.standard_error for gain in bins]
        assert ends == pytest.approx([end for end in wanted if not math.isnan(end)])
        assert [text.get_text().split("\n")[0] for text in axes.get_xticklabels()] == [gain.label for gain in bins]
        # The line at zero.
        assert [0, 0] in [list(line.get_ydata()) for line in axes.lines]
