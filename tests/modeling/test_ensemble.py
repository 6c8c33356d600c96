"""The logits of the ensemble equal the slow reference, with and without caches, chunks, padding and masks."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from transformers import DynamicCache, StaticCache

from tests.support import reference
from tests.support.batches import TOLERANCE, batches_of, expected_loss, expected_nll, text_of
from tests.support.generation import cache_of, cached_logits, prompt, reference_inputs, text_inputs
from tests.support.tiny import left_pad, make, make_stock, model_of, random_ids, stock_twin, tiny_model
from tests.support.training import assert_same_gradients, gradients

LAMBDAS = [0.0, 0.4, 1.0]
SETTINGS = [("gpt2", size, target) for size in (1, 2, 3, 4, 5) for target in ("wdr", "simple")]
SETTINGS += [
    (name, *setting) for name in ("marian", "bart", "t5") for setting in ((1, "wdr"), (2, "simple"), (4, "wdr"))
]


@pytest.mark.parametrize(
    ("name", "size", "target", "batch"),
    [(*setting, batch) for setting in SETTINGS for batch in batches_of(setting[0])],
)
@torch.no_grad()
def test_logits_and_evaluation_loss(name, size, target, batch):
    batch, close = batches_of(name)[batch], TOLERANCE[name]
    model = make(name, torch.float64, ngram_size=size, ngram_target=target, label_smoothing=0.3)
    text = text_of(name, batch)
    unlabelled = {key: value for key, value in batch.items() if key != "labels"}
    if name != "gpt2":
        unlabelled["decoder_input_ids"] = text["input_ids"]
    nlls = model.train()(**batch).head_losses
    torch.testing.assert_close(nlls, expected_loss(name, model, batch)[1], **close)
    model.eval()
    outputs = [model(**batch, ensemble_lambda=ensemble_lambda) for ensemble_lambda in LAMBDAS]
    for ensemble_lambda, output in zip(LAMBDAS, outputs, strict=True):
        expected = reference.ensembled_logits(model, ensemble_lambda=ensemble_lambda, **text)
        torch.testing.assert_close(output.logits, expected, **close)
        torch.testing.assert_close(model(**unlabelled, ensemble_lambda=ensemble_lambda).logits, expected, **close)
        if size > 1:
            torch.testing.assert_close(output.loss, expected_nll(name, expected, batch), **close)
        torch.testing.assert_close(output.head_losses, nlls, **close)
    counted = model(**batch, ensemble_lambda=0.4, num_items_in_batch=torch.tensor(4)).loss
    torch.testing.assert_close(counted, outputs[1].loss * outputs[1].head_counts[0] / 4)
    grid = model(**batch, ensemble_lambda=LAMBDAS)
    torch.testing.assert_close(grid.loss, torch.stack([output.loss for output in outputs]))
    torch.testing.assert_close(grid.head_losses, nlls, **close)
    assert grid.logits is None


def test_gradients_of_the_evaluation_loss(target):
    model, ids = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4), random_ids(2, 9)
    expected = reference.next_word_nll(reference.ensembled_logits(model, ids, 0.4), ids)
    assert_same_gradients(gradients(model, model(ids, labels=ids).loss), gradients(model, expected))


@torch.no_grad()
def test_prediction_does_not_depend_on_its_target(target):
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(1, 12)
    changed = ids.clone()
    changed[:, 7:] = random_ids(1, 5, seed=3)
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(after[:, :7], before[:, :7])
    assert not torch.allclose(after[:, 7], before[:, 7])


CHUNKS = [[12], [1] * 12, [5, 1, 1, 5], [1, 2, 3, 6], [11, 1]]


@pytest.mark.parametrize("kind", ["the backbone's own", "dynamic", "dynamic with config", "static"])
@torch.no_grad()
def test_cached_equals_uncached(name, kind, target):
    model, ids = model_of(name, ngram_target=target, ensemble_lambda=0.4), prompt(2, 12)
    uncached = model(**text_inputs(model, ids), use_cache=False).logits
    expected = reference.ensembled_logits(model, ensemble_lambda=0.4, **reference_inputs(model, ids))
    torch.testing.assert_close(uncached, expected, **TOLERANCE[name])
    for chunks in CHUNKS:
        cache = None if kind == "the backbone's own" else cache_of(model, kind)
        torch.testing.assert_close(cached_logits(model, ids, chunks, cache), uncached)


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


@torch.no_grad()
def test_padded_equals_unpadded(name, target):
    """Padding is not in the history. Marian counts positions through it, like the stock model."""
    model = model_of(name, ngram_target=target, ensemble_lambda=0.4)
    rows = [prompt(1, length, seed=length)[0] for length in (12, 7, 4, 1)]
    ids, mask = left_pad(rows)
    text = {"attention_mask": mask}
    if name == "gpt2":
        text["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    batch = model(**text_inputs(model, ids, **text), use_cache=False).logits
    by_chunk = [cached_logits(model, ids, chunks, **text) for chunks in CHUNKS]
    expected = reference.ensembled_logits(model, ensemble_lambda=0.4, **reference_inputs(model, ids, **text))
    for b, row in enumerate(rows):
        for actual in (batch, *by_chunk):
            torch.testing.assert_close(actual[b, -len(row) :], expected[b, -len(row) :], **TOLERANCE[name])
        if name != "marian":
            alone = model(**text_inputs(model, row[None], torch.tensor([b]))).logits[0]
            torch.testing.assert_close(batch[b, -len(row) :], alone)


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
def test_cache_operations(name, target):
    """Operations on the cache also change the history."""
    model = model_of(name, ngram_target=target, ensemble_lambda=0.4)
    ids, more, everything = prompt(3, 8), random_ids(3, 3, seed=5), torch.arange(3)

    def check(kind, change, rows, kept=8):
        """`change` the cache of `ids`, so that it has the first `kept` tokens of `rows`, and read `more`."""
        cache = cache_of(model, kind)
        cached_logits(model, ids, [8], cache)
        change(cache)
        after = more[torch.arange(len(rows)) % 3]
        actual = cached_logits(model, after, [1] * 3, cache, rows=rows)
        whole = text_inputs(model, torch.cat([ids[rows, :kept], after], 1), rows)
        torch.testing.assert_close(actual, model(**whole, use_cache=False).logits[:, kept:])

    for kept in (5, 1):
        check("dynamic", lambda cache, kept=kept: cache.crop(kept - 8), everything, kept)
    for kind in ("dynamic", "static"):
        order = torch.tensor([2, 0, 0])
        check(kind, lambda cache, order=order: cache.reorder_cache(order), order)
        check(kind, lambda cache: cache.reset(), everything, 0)
    selected = torch.tensor([2, 1])
    check("dynamic", lambda cache: cache.batch_select_indices(selected), selected)
    check("dynamic", lambda cache: cache.batch_repeat_interleave(2), everything.repeat_interleave(2))


@torch.no_grad()
def test_tokens_without_history(name, target):
    """Tokens read with λ = 0 or by a plain model are not in the history."""
    model, ids = model_of(name, ngram_target=target), prompt(2, 12)
    plain = stock_twin(model, make_stock(name, torch.float64))
    inputs = reference_inputs(model, ids)
    expected = reference.ensembled_logits(model, ensemble_lambda=0.4, first_known=5, **inputs)[:, 5:]
    caches = [cache_of(model) for _ in range(2)]
    model(**text_inputs(model, ids[:, :5]), past_key_values=caches[0], ensemble_lambda=0.0)
    plain(**text_inputs(model, ids[:, :5]), past_key_values=caches[1])
    for cache in caches:
        actual = cached_logits(model, ids[:, 5:], [1, 2, 4], cache, ensemble_lambda=0.4)
        torch.testing.assert_close(actual, expected, **TOLERANCE[name])


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
def test_lambda_that_changes_between_steps(name, target):
    """A step with λ = 0 is a gap in the history, which no prediction crosses."""
    model, ids = model_of(name, ngram_target=target), prompt(2, 9)
    cache = cache_of(model)

    def read(start, end, ensemble_lambda):
        return cached_logits(model, ids[:, start:end], [end - start], cache, ensemble_lambda=ensemble_lambda)

    def expected(**first_known):
        return reference.ensembled_logits(model, ensemble_lambda=0.7, **reference_inputs(model, ids), **first_known)

    read(0, 4, 0.2)
    torch.testing.assert_close(read(4, 6, 0.7), expected()[:, 4:6], **TOLERANCE[name])
    read(6, 7, 0.0)
    torch.testing.assert_close(read(7, 9, 0.7), expected(first_known=7)[:, 7:], **TOLERANCE[name])


def as_embeddings(model, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    inputs = text_inputs(model, ids)
    ids = inputs.pop(f"{model.ngram_text_prefix}input_ids")
    return inputs | {f"{model.ngram_text_prefix}inputs_embeds": model.get_decoder().get_input_embeddings()(ids)}


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_ids_after_embeddings(name, kind, target):
    """Simple heads have their whole past. A WDR head has none where one of its last tokens is unknown."""
    model, ids = model_of(name, ngram_target=target, ensemble_lambda=0.4), random_ids(2, 9)
    first_known = 4 if target == "wdr" else 0
    expected = reference.ensembled_logits(
        model, ensemble_lambda=0.4, first_known=first_known, **reference_inputs(model, ids)
    )
    cache = cache_of(model, kind)
    parts = [as_embeddings(model, part) for part in ids[:, :5].split([3, 2], dim=1)]
    parts += [text_inputs(model, part) for part in ids[:, 5:].split([1, 3], dim=1)]
    logits = torch.cat([model(**part, past_key_values=cache).logits for part in parts], dim=1)
    torch.testing.assert_close(logits, expected, **TOLERANCE[name])


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


@torch.no_grad()
def test_compiled_steps_are_compiled_once(target):
    """The history grows with every step, but what the compiled code reads of it does not change."""
    torch._dynamo.reset()
    model, cache = tiny_model(ngram_target=target, ensemble_lambda=0.4, n_layer=1), DynamicCache()
    ids, counter = random_ids(2, 12), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    logits, counts = [model(ids[:, :4], past_key_values=cache).logits], []
    for t in range(4, 12):
        logits.append(compiled(ids[:, t : t + 1], past_key_values=cache).logits)
        counts.append(counter.frame_count)
    # The first step makes the history, and the second finds that lengths change.
    assert counts[2:] == [counts[2]] * 6
    assert counts[0] > 0
    torch.testing.assert_close(torch.cat(logits, 1), model(ids).logits, rtol=0, atol=1e-5)


def test_compiled_training_forward():
    model, ids = tiny_model(n_layer=1, ngram_size=2).train(), random_ids(2, 9)
    loss = torch.compile(model, backend="eager")(ids, labels=ids).loss
    torch.testing.assert_close(loss, model(ids, labels=ids).loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_without_labels_under_gradient_checkpointing():
    """The backbone then leaves the cache empty, without a layer for the history."""
    model = tiny_model(ensemble_lambda=0.4).train()
    model.gradient_checkpointing_enable()
    logits = model(random_ids(1, 5), past_key_values=DynamicCache()).logits
    torch.testing.assert_close(logits, model.eval()(random_ids(1, 5)).logits)
