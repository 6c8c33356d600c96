"""The logits of the ensemble equal the slow reference, with and without caches, chunks, padding and masks."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from transformers import DynamicCache, StaticCache

from tests.support import reference
from tests.support.batches import BATCHES
from tests.support.generation import cached_logits
from tests.support.tiny import left_pad, plain_model, random_ids, tiny_model

SIZES = [1, 2, 3, 4, 5]
LAMBDAS = [0.0, 0.4, 1.0]


@pytest.fixture(params=["wdr", "simple"])
def target(request):
    return request.param


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_logits_and_evaluation_loss(size, target, name):
    batch = dict(BATCHES[name])
    labels = batch.pop("labels")
    model = tiny_model(torch.float64, ngram_size=size, ngram_target=target)
    for ensemble_lambda in LAMBDAS:
        expected = reference.ensembled_logits(model, ensemble_lambda=ensemble_lambda, **batch)
        torch.testing.assert_close(model(**batch, ensemble_lambda=ensemble_lambda).logits, expected)
        output = model(**batch, labels=labels, ensemble_lambda=ensemble_lambda)
        torch.testing.assert_close(output.logits, expected)
        if size > 1:
            structure = {key: batch[key] for key in ("attention_mask", "position_ids") if key in batch}
            torch.testing.assert_close(output.loss, reference.next_word_nll(expected, labels, **structure))
        nlls = reference.training_loss(model, labels=labels, **batch)[1]
        torch.testing.assert_close(output.head_losses, nlls, check_dtype=False)
    losses = [model(**batch, labels=labels, ensemble_lambda=value).loss for value in LAMBDAS]
    grid = model(**batch, labels=labels, ensemble_lambda=LAMBDAS)
    torch.testing.assert_close(grid.loss, torch.stack(losses))
    torch.testing.assert_close(grid.head_losses, nlls, check_dtype=False)
    assert grid.logits is None


@torch.no_grad()
def test_gradient_of_the_evaluation_loss(target):
    with torch.enable_grad():
        model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
        ids = random_ids(2, 9)
        logits = reference.ensembled_logits(model, ids, 0.4)
        expected = torch.autograd.grad(reference.next_word_nll(logits, ids), list(model.parameters()))
        actual = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    for grad, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(grad, wanted)


def test_configured_lambda_is_the_default():
    ids = random_ids(2, 9)
    model = tiny_model(ensemble_lambda=0.4)
    assert torch.equal(model(ids).logits, model(ids, ensemble_lambda=0.4).logits)
    assert not torch.allclose(model(ids).logits, model(ids, ensemble_lambda=0.0).logits, atol=1e-2)


def test_label_smoothing_is_for_training_only():
    ids = random_ids(2, 9)
    smooth, sharp = tiny_model(label_smoothing=0.3), tiny_model()
    assert torch.equal(smooth(ids, labels=ids).loss, sharp(ids, labels=ids).loss)


@torch.no_grad()
def test_prediction_does_not_depend_on_its_target(target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(1, 12)
    changed = ids.clone()
    changed[:, 7:] = random_ids(1, 5, seed=3)
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(after[:, :7], before[:, :7])
    assert not torch.allclose(after[:, 7], before[:, 7])


@torch.no_grad()
def test_number_of_trainer_items_divides_the_evaluation_loss():
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    ids = random_ids(2, 9)
    mean = model(ids, labels=ids).loss
    torch.testing.assert_close(model(ids, labels=ids, num_items_in_batch=torch.tensor(4)).loss, mean * 16 / 4)


CHUNKS = [[12], [1] * 12, [5, 1, 1, 5], [1, 2, 3, 6], [11, 1]]


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("kind", ["dynamic", "dynamic with config", "static"])
@torch.no_grad()
def test_cached_equals_uncached(chunks, kind, target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(2, 12)
    cache = {
        "dynamic": DynamicCache,
        "dynamic with config": lambda: DynamicCache(config=model.config),
        "static": lambda: StaticCache(config=model.config, max_cache_len=20),
    }[kind]()
    uncached = model(ids, use_cache=False).logits
    torch.testing.assert_close(cached_logits(model, ids, chunks, cache), uncached)


@torch.no_grad()
def test_cached_equals_uncached_in_single_precision(target):
    model = tiny_model(ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(2, 12)
    uncached = model(ids, use_cache=False).logits
    for chunks in CHUNKS:
        torch.testing.assert_close(cached_logits(model, ids, chunks), uncached, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@torch.no_grad()
def test_cached_equals_uncached_across_documents(chunks, target):
    """Boundaries may be anywhere, also between two chunks. With a cache, attention crosses them."""
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(1, 12)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]])
    whole = model(ids, position_ids=positions, use_cache=True).logits
    torch.testing.assert_close(cached_logits(model, ids, chunks, position_ids=positions), whole)
    expected = reference.ensembled_logits(model, ids, 0.4, position_ids=positions, past_key_values=DynamicCache())
    torch.testing.assert_close(whole, expected)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@torch.no_grad()
def test_padded_equals_unpadded(chunks, target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    rows = [random_ids(1, length, seed=length)[0] for length in (12, 7, 4, 1)]
    ids, mask = left_pad(rows)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    batch = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    by_chunk = cached_logits(model, ids, chunks, attention_mask=mask, position_ids=positions)
    for b, row in enumerate(rows):
        alone = model(row[None]).logits[0]
        torch.testing.assert_close(batch[b, -len(row) :], alone)
        torch.testing.assert_close(by_chunk[b, -len(row) :], alone)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_prepared_masks(attention, target):
    """Documents are found in a four-dimensional mask, boolean or added to the attention scores."""
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    model.set_attn_implementation(attention)
    ids, documents = random_ids(1, 10), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 2])
    allowed = (documents[:, None] == documents[None]).tril()[None, None]
    added = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])
    expected = torch.cat([model(document).logits for document in ids.split([4, 5, 1], dim=1)], dim=1)
    for mask in [added] if attention == "eager" else [added, allowed]:
        actual = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(actual, expected)
        # Positions that continue across the boundary change the embeddings only.
        running = model(ids, attention_mask=mask, use_cache=False).logits
        no_ensemble = model(ids, attention_mask=mask, use_cache=False, ensemble_lambda=0.0).logits
        torch.testing.assert_close(running[:, [0, 4, 9]], no_ensemble[:, [0, 4, 9]])


@torch.no_grad()
def test_cache_operations(target):
    """Operations on the cache also change the history."""
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids, more = random_ids(3, 8), random_ids(3, 3, seed=5)

    def continued(cache, tokens):
        return cached_logits(model, tokens, [1] * tokens.shape[1], cache)

    def fresh():
        cache = DynamicCache()
        model(ids, past_key_values=cache)
        return cache

    def expected(rows):
        return model(rows, use_cache=False).logits

    cache = fresh()
    cache.crop(-3)
    torch.testing.assert_close(continued(cache, more), expected(torch.cat([ids[:, :5], more], 1))[:, 5:])
    cache = fresh()
    cache.crop(-7)
    torch.testing.assert_close(continued(cache, more), expected(torch.cat([ids[:, :1], more], 1))[:, 1:])
    cache = fresh()
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    torch.testing.assert_close(continued(cache, more), expected(torch.cat([ids[order], more], 1))[:, 8:])
    cache = fresh()
    cache.batch_select_indices(torch.tensor([2, 1]))
    torch.testing.assert_close(continued(cache, more[:2]), expected(torch.cat([ids[[2, 1]], more[:2]], 1))[:, 8:])
    cache = fresh()
    cache.batch_repeat_interleave(2)
    twice, more_twice = ids.repeat_interleave(2, 0), more.repeat(2, 1)
    torch.testing.assert_close(continued(cache, more_twice), expected(torch.cat([twice, more_twice], 1))[:, 8:])
    cache = fresh()
    cache.reset()
    torch.testing.assert_close(continued(cache, more), expected(more))
    static = StaticCache(config=model.config, max_cache_len=16)
    model(ids, past_key_values=static)
    static.reorder_cache(order)
    torch.testing.assert_close(continued(static, more), expected(torch.cat([ids[order], more], 1))[:, 8:])
    static.reset()
    torch.testing.assert_close(continued(static, more), expected(more))


@torch.no_grad()
def test_tokens_without_history(target):
    """Tokens read with λ = 0 or by a plain model are not in the history."""
    model = tiny_model(torch.float64, ngram_target=target)
    plain = plain_model(torch.float64)
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = random_ids(2, 12)
    expected = reference.ensembled_logits(model, ids, 0.4, first_known=5)[:, 5:]
    caches = [DynamicCache() for _ in range(2)]
    model(ids[:, :5], past_key_values=caches[0], ensemble_lambda=0.0)
    plain(ids[:, :5], past_key_values=caches[1])
    for cache in caches:
        actual = cached_logits(model, ids[:, 5:], [1, 2, 4], cache, ensemble_lambda=0.4)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 1, 5]], ids=str)
@torch.no_grad()
def test_cross_attention(chunks, target):
    """GPT-2 as a decoder has two caches; the history is in that of self-attention."""
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4, add_cross_attention=True)
    ids, encoder = random_ids(2, 12), torch.randn(2, 5, 16, dtype=torch.float64)
    uncached = model(ids, encoder_hidden_states=encoder, use_cache=False).logits
    cache = model(ids[:, :1], encoder_hidden_states=encoder).past_key_values
    cache.reset()
    torch.testing.assert_close(cached_logits(model, ids, chunks, cache, encoder_hidden_states=encoder), uncached)


@torch.no_grad()
def test_mask_as_wide_as_a_static_cache(target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(2, 9)
    wide, cache = torch.zeros(2, 16, dtype=torch.long), StaticCache(config=model.config, max_cache_len=16)
    wide[:, :9] = 1
    first = model(ids[:, :6], attention_mask=wide, past_key_values=cache).logits
    rest = model(ids[:, 6:], attention_mask=wide, past_key_values=cache).logits
    torch.testing.assert_close(torch.cat([first, rest], 1), model(ids, use_cache=False).logits)


def test_mask_with_biases_has_no_boundaries(target):
    """A mask added to the attention scores may favor near tokens without excluding others."""
    model, ids = tiny_model(torch.float64, ngram_target=target), random_ids(1, 8)
    steps = torch.arange(8)
    distances = (steps[:, None] - steps[None]).double()
    mask = (-0.1 * distances).masked_fill(distances < 0, torch.finfo(torch.float64).min)[None, None]
    output = model.train()(ids, labels=ids, attention_mask=mask, use_cache=False)
    # All targets are used: 7 at depth 0, 6 at depth 1, ...
    hidden = model.transformer(ids, attention_mask=mask, use_cache=False).last_hidden_state
    nll = F.cross_entropy(model.lm_head(hidden)[0, :-1], ids[0, 1:])
    torch.testing.assert_close(output.head_losses[0], nll.detach())
    assert (output.head_losses > 0).all()


@torch.no_grad()
def test_cropping_more_than_the_history(target):
    """Tokens read with λ = 0 are not in the history. Cropping all of its tokens empties it."""
    model = tiny_model(torch.float64, ngram_target=target)
    ids, cache = random_ids(3, 7), DynamicCache()
    model(ids[:, :5], past_key_values=cache, ensemble_lambda=0.0)
    model(ids[:, 5:], past_key_values=cache, ensemble_lambda=0.4)
    cache.crop(-3)
    cache.batch_select_indices(torch.tensor([0, 1]))
    actual = cached_logits(model, ids[:2, 4:], [1, 2], cache, ensemble_lambda=0.4)
    torch.testing.assert_close(actual, reference.ensembled_logits(model, ids[:2], 0.4, first_known=4)[:, 4:])


@torch.no_grad()
def test_lambda_that_changes_between_steps(target):
    model = tiny_model(torch.float64, ngram_target=target)
    ids, cache = random_ids(2, 9), DynamicCache()
    model(ids[:, :4], past_key_values=cache, ensemble_lambda=0.2)
    actual = model(ids[:, 4:6], past_key_values=cache, ensemble_lambda=0.7).logits
    torch.testing.assert_close(actual, model(ids, ensemble_lambda=0.7).logits[:, 4:6])
    # A step with λ = 0 is a gap in the history, which no prediction crosses.
    model(ids[:, 6:7], past_key_values=cache, ensemble_lambda=0.0)
    actual = model(ids[:, 7:], past_key_values=cache, ensemble_lambda=0.7).logits
    torch.testing.assert_close(actual, reference.ensembled_logits(model, ids, 0.7, first_known=7)[:, 7:])


@pytest.mark.parametrize(
    "logits_to_keep",
    [1, 4, 0, torch.tensor([0, 3, 8]), torch.tensor([[1, 2], [7, 8]]), torch.arange(18).view(2, 9) % 3 == 0],
    ids=["last", "last 4", "all", "positions", "positions by row", "mask"],
)
@torch.no_grad()
def test_logits_to_keep(logits_to_keep, target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(2, 9)
    whole = model(ids).logits
    if isinstance(logits_to_keep, int):
        expected = whole[:, -logits_to_keep:]
    elif logits_to_keep.dtype == torch.bool:
        expected = whole[logits_to_keep]
    elif logits_to_keep.ndim == 1:
        expected = whole[:, logits_to_keep]
    else:
        expected = torch.stack([row[kept] for row, kept in zip(whole, logits_to_keep, strict=True)])
    torch.testing.assert_close(model(ids, logits_to_keep=logits_to_keep).logits, expected)
    output = model(ids, labels=ids, logits_to_keep=logits_to_keep)
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, model(ids, labels=ids).loss)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_compiled_forward(kind, target):
    model = tiny_model(ngram_target=target, ensemble_lambda=0.4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=kind == "static")
    ids = random_ids(2, 9)
    cache = DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=12)
    expected = model(ids).logits
    logits = [model(ids[:, :4], past_key_values=cache).logits]
    logits += [compiled(ids[:, t : t + 1], past_key_values=cache).logits for t in range(4, 9)]
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_compiled_steps_are_compiled_once(target):
    """The history grows with every step, but what the compiled code reads of it does not change."""
    torch._dynamo.reset()
    model, cache, ids = tiny_model(ngram_target=target, ensemble_lambda=0.4), DynamicCache(), random_ids(2, 12)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    model(ids[:, :4], past_key_values=cache)
    counts = []
    for t in range(4, 12):
        compiled(ids[:, t : t + 1], past_key_values=cache)
        counts.append(counter.frame_count)
    # The first step makes the history, and the second finds that lengths change.
    assert counts[2:] == [counts[2]] * 6
    assert counts[0] > 0


def test_compiled_training_forward():
    model = tiny_model().train()
    ids = random_ids(2, 9)
    compiled = torch.compile(model, backend="eager")
    loss = compiled(ids, labels=ids).loss
    torch.testing.assert_close(loss, model(ids, labels=ids).loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_without_labels_under_gradient_checkpointing():
    """The backbone then leaves the cache empty, without a layer for the history."""
    model = tiny_model(ensemble_lambda=0.4).train()
    model.gradient_checkpointing_enable()
    logits = model(random_ids(1, 5), past_key_values=DynamicCache()).logits
    torch.testing.assert_close(logits, model.eval()(random_ids(1, 5)).logits)


def test_subclass_can_override_forward():
    calls = []

    class Louder(type(tiny_model())):
        def forward(self, *args, **kwargs):
            calls.append("louder")
            return super().forward(*args, **kwargs)

    class Loudest(Louder):
        pass

    Loudest(tiny_model().config)(random_ids(1, 4))
    assert calls == ["louder"]


def test_tuple_output():
    model = tiny_model(ensemble_lambda=0.4)
    ids = random_ids(2, 9)
    output = model(ids, labels=ids)
    as_tuple = model(ids, labels=ids, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)
    assert torch.equal(as_tuple[-2], output.head_losses) and list(output)[-2:] == ["head_losses", "head_counts"]


def test_other_outputs_equal_those_of_the_backbone():
    model = tiny_model(ensemble_lambda=0.4)
    model.set_attn_implementation("eager")
    output = model(random_ids(2, 9), output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
