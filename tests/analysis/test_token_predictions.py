"""What was predicted about each token of a text: against one forward pass per token, drafts, and the page."""

import re

import pytest
import torch

from ngram_wdr_hf.analysis import Prediction, TokenPredictions, TracedToken, token_predictions, traced_text
from ngram_wdr_hf.analysis.token_predictions_page import predictions_fragment
from ngram_wdr_hf.evaluation.unavailable import Unavailable
from tests.support.errors import raises_naming
from tests.support.options import ALWAYS, HEADS_ONLY, NO_END
from tests.support.tiny import VOCAB_SIZE, random_ids, tiny_model, tiny_seq2seq
from tests.support.tokenizers import letter_tokenizer
from tests.support.trained import Language, trained_model

TOKENIZER = letter_tokenizer()
WEIGHTS = (0.7, 0.4, -0.2, 0.1)


def read_slowly(model, text: list[int], depth: int) -> torch.Tensor | None:
    """Return what a depth predicts after `text`, as probabilities, from the hidden states of a separate forward."""
    if depth >= len(text):
        return None
    states = model.transformer(torch.tensor([text])).last_hidden_state[0]
    embeddings = model.get_output_embeddings().weight
    nearest_first = [embeddings[token] for token in reversed(text[len(text) - depth :])]
    state = states[-1 - depth]
    predicted = model.ngram_heads[depth - 1].predict(state, nearest_first) if depth else state
    return (embeddings @ predicted).softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("fields", [{}, {"ngram_target": "simple"}, {"ngram_head_reads": "hidden+tokens"}], ids=str)
def test_one_pass_equals_one_per_token(fields):
    model = tiny_model(torch.float64, **fields)
    text = random_ids(1, 9)[0].tolist()
    found = token_predictions(model.train(), TOKENIZER, text[:2], text[2:], WEIGHTS)
    assert model.training and len(found) == 7
    model.eval()
    for at, one in enumerate(found, start=2):
        expected = [read_slowly(model, text[:at], depth) for depth in range(4)]
        mixed = model(torch.tensor([text[:at]]), ensemble_weights=WEIGHTS).logits[0, -1].softmax(-1)
        assert [prediction is None for prediction in one.by_depth] == [depth >= at for depth in range(4)]
        for prediction, probabilities in zip((*one.by_depth, one.ensemble), (*expected, mixed), strict=True):
            if prediction is not None:
                best = int(probabilities.argmax())
                assert (prediction.text, prediction.is_right) == (TOKENIZER.decode([best]), best == text[at])
                assert prediction.probability == pytest.approx(probabilities[best].item(), abs=1e-6)
                assert prediction.token_probability == pytest.approx(probabilities[text[at]].item(), abs=1e-6)
    assert all(one.ensemble is None for one in token_predictions(model, TOKENIZER, text[:2], text[2:]))


def test_predictions_are_the_drafts():
    """An accepted draft was the prediction of its head, and so was the first rejected one."""
    model, num_accepted, num_rejected = trained_model(4, "wdr"), 0, 0
    for seed in range(4):
        begin = Language(seed).prompt(8).tolist()
        traced = traced_text(model, TOKENIZER, begin, 32, **ALWAYS, **HEADS_ONLY, **NO_END)
        (trace,) = traced.statistics.trace
        predictions = token_predictions(model, TOKENIZER, begin, [one.token for one in trace])
        for one, token, predicted in zip(trace, traced.tokens, predictions, strict=True):
            assert predicted.by_depth[one.source].is_right
            num_accepted += one.source > 0
            for draft in token.rejected:
                assert predicted.by_depth[draft.source].text == draft.text
                num_rejected += 1
    assert num_accepted > 10 and num_rejected > 5


def test_heads_choose_from_the_draft_tokens():
    model, text = tiny_model(), list(range(2, VOCAB_SIZE))
    model.ngram_set_draft_tokens([7, 3, 11])
    letters = set(TOKENIZER.convert_ids_to_tokens([7, 3, 11]))
    for token, one in zip(text[4:], token_predictions(model, TOKENIZER, text[:4], text[4:]), strict=True):
        for prediction in one.by_depth[1:]:
            assert prediction.text in letters and (prediction.token_probability > 0) == (token in (7, 3, 11))
        assert one.by_depth[0].token_probability > 0


def test_table():
    """A row per token, a column per depth; texts are escaped."""
    right, wrong = Prediction("<i>", 0.5, 0.5, True), Prediction("\n", 0.9, 0.026, False)
    tokens = [TracedToken("<i>", 2), TracedToken(" a", 0)]
    html = predictions_fragment(
        tokens, [TokenPredictions((wrong, None), right), TokenPredictions((right, wrong), wrong)]
    )
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    cells = [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]
    assert cells == [
        ["token", "model", "head 1", "ensemble"],
        ["&lt;i&gt;", "⏎ 90%", "–", "&lt;i&gt; 50% ✓"],
        [" a", "&lt;i&gt; 50% ✓", "⏎ 90%", "⏎ 90%"],
    ]
    assert 'data-mark="2"' in rows[1] and '--known: 3%" title="the token of the text: 3%"' in rows[1]
    without = [TokenPredictions((right, None), None)]
    assert "ensemble" not in predictions_fragment(tokens[:1], without)


@pytest.mark.parametrize(("begin", "ids"), [([], [5]), ([5], [])])
def test_too_short_text(begin, ids):
    with raises_naming(ValueError, "`begin`", "`ids`"):
        token_predictions(tiny_model(), TOKENIZER, begin, ids)


def test_encoder_decoder_model():
    with raises_naming(Unavailable, "`model`", "causal"):
        token_predictions(tiny_seq2seq("bart"), TOKENIZER, [5], [6])
