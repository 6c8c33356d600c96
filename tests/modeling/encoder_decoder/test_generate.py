"""`generate` of encoder-decoder models with the ensemble equals recomputation of the whole text at every step."""

import pytest
import torch

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from ngram_wdr_hf.decoding.cache_history import NgramHistory, layers_and_history
from tests.support import reference
from tests.support.encoder_decoder import PAD, START, STEPS, lengths_read, padded_sources, prompt
from tests.support.generation import assert_same_generation, differ, generate
from tests.support.options import NO_END, STRATEGIES
from tests.support.tiny import plain_seq2seq, random_ids, right_pad, stock_twin, tiny_seq2seq


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@torch.no_grad()
def test_greedy_equals_slow_greedy(name, size, target):
    model = tiny_seq2seq(name, torch.float64, ngram_size=size, ngram_target=target)
    sources = random_ids(3, 5)
    output = generate(model, sources, ensemble_lambda=0.4, **NO_END)
    assert output.sequences.shape == (3, 1 + STEPS)
    logits = reference.ensembled_logits(model, output.sequences[:, :-1], 0.4, encoder_ids=sources)
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float())
    assert torch.equal(output.sequences[:, 1:], logits.argmax(-1))
    # The start token has no history; all steps after it have.
    without = reference.ensembled_logits(model, output.sequences[:, :-1], 0.0, encoder_ids=sources)
    torch.testing.assert_close(logits[:, 0], without[:, 0])
    assert ((logits - without)[:, 1:].abs().amax(-1) > 0.01).all()


@pytest.mark.parametrize("num_beams", [2, 3, 4])
@torch.no_grad()
def test_beam_search_equals_slow_beam_search(name, num_beams, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target)
    sources = random_ids(2, 4, seed=5)
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 6,
        "length_penalty": 0.0,
        **NO_END,
    }
    output = generate(model, sources, ensemble_lambda=0.4, **options)
    starts = torch.full((2, 1), START)
    slow = reference.beam_search(model, starts, 0.4, num_beams, max_new_tokens=6, encoder_ids=sources)
    slow = [beam for beams in slow for beam in beams]
    assert torch.equal(output.sequences, torch.stack([tokens for _, tokens in slow]))
    torch.testing.assert_close(output.sequences_scores, torch.tensor([score for score, _ in slow]))
    # The beams are reordered, and the search without the ensemble has another result.
    assert (output.beam_indices[:, 2:-1] != output.beam_indices[:, 1:-2]).any()
    plain = generate(model, sources, ensemble_lambda=0.0, **options)
    assert not torch.allclose(plain.sequences_scores, output.sequences_scores, atol=0.01)


FEATURES = {
    "temperature, top-k, top-p": {"do_sample": True, "temperature": 0.7, "top_k": 10, "top_p": 0.8},
    "repetition penalty": {"repetition_penalty": 1.5},
    "encoder repetition penalty": {"encoder_repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[3], [4, 5]]},
    "minimal length": {"min_new_tokens": 5},
    "forced tokens": {"forced_bos_token_id": 5, "forced_eos_token_id": 0},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda _, ids: list(range(2, 20))},
    "renormalized": {"num_beams": 2, "renormalize_logits": True, "repetition_penalty": 1.2},
    "hidden states and attentions": {"output_hidden_states": True, "output_attentions": True},
    "a prompt": {"decoder_input_ids": prompt(2, 5)},
    "a prompt and beams": {"decoder_input_ids": prompt(2, 5), "num_beams": 3},
}


@pytest.mark.parametrize("option", [*STRATEGIES, *FEATURES])
def test_cached_equals_recomputed(name, option):
    """Without a cache, `generate` reads the whole text at every step."""
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **options}
    first = options["decoder_input_ids"].shape[1] if "decoder_input_ids" in options else 1
    with lengths_read(model) as lengths:
        cached = generate(model, ids, **options)
    assert lengths == [first] + [1] * (len(cached.logits) - 1)
    assert isinstance(layers_and_history(cached.past_key_values)[-1], NgramHistory)
    with lengths_read(model) as lengths:
        recomputed = generate(model, ids, use_cache=False, **options)
    assert lengths == [first + step for step in range(len(recomputed.logits))]
    assert recomputed.past_key_values is None
    assert_same_generation(cached, recomputed)
    assert differ(generate(model, ids, ensemble_lambda=0.0, **options), cached)


@pytest.mark.parametrize("option", [*STRATEGIES, "no repeated bigrams", "renormalized", "a prompt and beams"])
def test_configuration_argument_and_processor_agree(name, option):
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64)
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **options}
    plain = generate(model, ids, **options)
    by_argument = generate(model, ids, ensemble_lambda=0.4, **options)
    processor = NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)
    by_processor = generate(model, ids, logits_processor=[processor], **options)
    model.config.ensemble_lambda = 0.4
    by_configuration = generate(model, ids, **options)
    assert_same_generation(by_processor, by_argument, 0.0)
    assert_same_generation(by_configuration, by_argument, 0.0)
    assert differ(plain, by_argument)


@pytest.mark.parametrize("option", [*STRATEGIES, *FEATURES])
def test_switched_off_equals_the_stock_model(name, option):
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64)
    plain = stock_twin(model, plain_seq2seq(name, torch.float64))
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
        plain.set_attn_implementation("eager")
    ids, mask = padded_sources()
    ours, stock = (generate(each, ids, attention_mask=mask, **options) for each in (model, plain))
    assert_same_generation(ours, stock, 1e-12)


@pytest.mark.parametrize("option", STRATEGIES)
def test_without_heads_equals_the_stock_model(name, option):
    model = tiny_seq2seq(name, torch.float64, ngram_size=1, ensemble_lambda=0.4)
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **STRATEGIES[option]}
    assert_same_generation(
        generate(model, ids, **options),
        generate(stock_twin(model, plain_seq2seq(name, torch.float64)), ids, **options),
        1e-12,
    )


@pytest.mark.parametrize("option", ["greedy", "beam search", "several beams", "early stopping beams"])
def test_batch_equals_single_rows(name, option):
    options = {**STRATEGIES[option], **NO_END}
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    rows = [random_ids(1, length, seed=length)[0] for length in (6, 3, 1)]
    ids, mask = right_pad(rows)
    batch = generate(model, ids, attention_mask=mask, **options)
    for b, row in enumerate(rows):
        alone = generate(model, row[None], **options)
        count, num_beams = len(alone.sequences), len(alone.logits[0])
        assert torch.equal(batch.sequences[b * count : (b + 1) * count], alone.sequences)
        for logits, wanted in zip(batch.logits, alone.logits, strict=True):
            torch.testing.assert_close(logits[b * num_beams : (b + 1) * num_beams], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("option", ["greedy", "beam search"])
def test_rows_that_end_early(name, option):
    """A finished row is padded until the others are finished; their tokens do not change."""
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(6, 5, seed=8)
    options = {"max_new_tokens": STEPS, "do_sample": False, **STRATEGIES[option], "pad_token_id": PAD}
    ends_differ = False
    for end in model.generate(sources, eos_token_id=None, **options)[:, 1:].unique().tolist():
        batch = model.generate(sources, eos_token_id=end, **options)
        lengths = []
        for row, source in zip(batch, sources, strict=True):
            alone = model.generate(source[None], eos_token_id=end, **options)[0]
            assert torch.equal(row[: len(alone)], alone)
            assert (row[len(alone) :] == PAD).all()
            lengths.append(len(alone))
        ends_differ |= min(lengths) < max(lengths)
    assert ends_differ


@pytest.mark.parametrize("option", ["greedy", "beam search", "sampling"])
def test_more_heads_than_tokens(name, option, target):
    model = tiny_seq2seq(name, torch.float64, ngram_size=12, ngram_target=target)
    sources = random_ids(2, 5)
    options = {**STRATEGIES[option], **NO_END, "max_new_tokens": 4}
    cached = generate(model, sources, ensemble_lambda=0.4, **options)
    static = generate(model, sources, ensemble_lambda=0.4, cache_implementation="static", **options)
    for other in (generate(model, sources, ensemble_lambda=0.4, use_cache=False, **options), static):
        assert_same_generation(cached, other)
    assert differ(generate(model, sources, **options), cached)
    if option == "greedy":
        with torch.no_grad():
            logits = reference.ensembled_logits(model, cached.sequences[:, :-1], 0.4, encoder_ids=sources)
        torch.testing.assert_close(torch.stack(cached.logits, dim=1), logits.float())


def test_transition_scores_add_up(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    output = generate(model, random_ids(2, 5), num_beams=3, length_penalty=0.0, **NO_END)
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    torch.testing.assert_close(scores.sum(1), output.sequences_scores)


def test_logit_layer_runs_once_for_each_new_token(name):
    model = tiny_seq2seq(name, ensemble_lambda=0.4)
    rows = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2]))
    model.generate(random_ids(3, 7), max_new_tokens=5, do_sample=False, **NO_END)
    assert rows == [(3, 1)] * 5
