"""Encoder-decoder models: loss, gradients and ensemble against the slow reference, and N = 1 is the stock model."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from ngram_wdr_hf.method import loss as loss_module

from tests.support import reference
from tests.method.test_loss import LargestTensor
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, left_pad, plain_seq2seq, random_ids, tiny_seq2seq

NAMES = list(SEQ2SEQ)
# N = 1 has no heads to have a target.
SETTINGS = [(1, "wdr"), (2, "wdr"), (3, "wdr"), (4, "wdr"), (3, "simple")]
# T5 finds its attention weights in float32, whatever the model's type is.
TOLERANCE = {"marian": {}, "bart": {}, "t5": {"rtol": 1e-5, "atol": 1e-6}}


def batches() -> dict[str, dict]:
    source, labels = random_ids(2, 6, seed=7), random_ids(2, 7)
    source_mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    padded_source = torch.where(source_mask == 1, source, 1)
    ragged = labels.clone()
    ragged[1, 4:] = -100
    holes = labels.clone()
    holes[0, 3] = holes[1, 0] = holes[1, 4:6] = -100
    decoder_ids = random_ids(2, 7, seed=3)
    padded, left_mask = left_pad([decoder_ids[0], decoder_ids[1, :4]])
    right_mask, inner_mask = left_mask.flip(1), torch.tensor([[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1]])
    own = {"input_ids": source, "decoder_input_ids": decoder_ids}
    return {
        "plain": {"input_ids": source, "labels": labels},
        "ragged": {"input_ids": padded_source, "attention_mask": source_mask, "labels": ragged},
        "holes": {"input_ids": source, "labels": holes},
        "decoder ids of one's own": {**own, "labels": holes},
        "left-padded decoder": {
            "input_ids": source,
            "decoder_input_ids": padded,
            "decoder_attention_mask": left_mask,
            "labels": labels.masked_fill(left_mask == 0, -100),
        },
        # The label of the last word before the padding, the end of the sentence, is a target like any other.
        "right-padded decoder": {
            **own,
            "decoder_attention_mask": right_mask,
            "labels": labels.masked_fill(right_mask == 0, -100),
        },
        "padding inside, labels everywhere": {**own, "decoder_attention_mask": inner_mask, "labels": labels},
        "shorter than N": {"input_ids": source, "labels": labels[:, :2]},
        "one word": {"input_ids": source[:, :1], "labels": labels[:, :1]},
        "no labels at all": {"input_ids": source, "labels": torch.full_like(labels, -100)},
    }


BATCHES = batches()


def shift_right(labels: torch.Tensor) -> torch.Tensor:
    """What the decoder reads if it is not told: the labels, one later, behind the start token."""
    return torch.cat([torch.full_like(labels[:, :1], 1), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)


def text_of(batch: dict) -> dict:
    """The batch in the words of `reference.hidden_states`."""
    decoder_ids = batch.get("decoder_input_ids")
    return {
        "input_ids": shift_right(batch["labels"]) if decoder_ids is None else decoder_ids,
        "attention_mask": batch.get("decoder_attention_mask"),
        "encoder_ids": batch["input_ids"],
        "encoder_mask": batch.get("attention_mask"),
    }


def expected_loss(model, batch: dict, **options) -> tuple[torch.Tensor, torch.Tensor]:
    text = text_of(batch)
    return reference.translation_loss(
        model,
        text["encoder_ids"],
        text["input_ids"],
        batch["labels"],
        encoder_mask=text["encoder_mask"],
        decoder_mask=text["attention_mask"],
        **options,
    )


def gradients(model, loss) -> dict[str, torch.Tensor]:
    # Marian's sinusoidal positions are parameters that are never trained.
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if grad is None else grad
        for (name, parameter), grad in zip(parameters.items(), grads, strict=True)
    }


def assert_same_gradients(actual: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], **tolerance) -> None:
    assert set(actual) == set(wanted)
    for name in wanted:
        torch.testing.assert_close(
            actual[name], wanted[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_loss_matches(name, batch, num_items=None, **fields) -> None:
    model = tiny_seq2seq(name, torch.float64, **fields).train()
    output = model(**batch, num_items_in_batch=num_items)
    expected, expected_nlls = expected_loss(model, batch, num_items=num_items)
    assert output.logits is None and output.past_key_values is None
    torch.testing.assert_close(output.loss, expected, **TOLERANCE[name])
    torch.testing.assert_close(output.head_losses, expected_nlls, **TOLERANCE[name])
    assert output.head_losses.shape == (model.config.ngram_size,) and not output.head_losses.requires_grad
    # A sum of nothing has no gradients at all.
    expected = expected + 0 * model.lm_head.weight.sum()
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected), **TOLERANCE[name])


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("size", "target"), SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients(name, size, target, batch):
    assert_loss_matches(name, BATCHES[batch], ngram_size=size, ngram_target=target)


def test_the_references_agree():
    """A target sentence is a row of a language model with one more token, whatever that is."""
    model, batch = tiny_seq2seq("marian", torch.float64), BATCHES["left-padded decoder"]
    row = F.pad(batch["decoder_input_ids"], (0, 1), value=5)
    causal = reference.training_loss(
        model,
        row,
        F.pad(batch["labels"], (1, 0), value=-100),
        attention_mask=F.pad(batch["decoder_attention_mask"], (0, 1), value=1),
        encoder_ids=batch["input_ids"],
    )
    torch.testing.assert_close(expected_loss(model, batch), causal)


@pytest.mark.parametrize("batch", ["ragged", "left-padded decoder", "shorter than N"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_label_smoothing(name, size, batch):
    assert_loss_matches(name, BATCHES[batch], ngram_size=size, label_smoothing=0.2)


@pytest.mark.parametrize("num_items", [7, torch.tensor(11)])
@pytest.mark.parametrize("name", NAMES)
def test_trainers_count_divides_every_head(name, num_items):
    assert_loss_matches(name, BATCHES["holes"], num_items, label_smoothing=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_shift_labels_are_the_labels(name):
    """Labels stand where the decoder predicts them, so there is nothing to shift in either."""
    batch = dict(BATCHES["ragged"])
    model = tiny_seq2seq(name, torch.float64).train()
    by_labels = model(**batch)
    labels = batch.pop("labels")
    by_shift = model(**batch, labels=torch.full_like(labels, 3), shift_labels=labels)
    assert torch.equal(by_shift.loss, by_labels.loss) and torch.equal(by_shift.head_losses, by_labels.head_losses)


@pytest.mark.parametrize("name", NAMES)
def test_padded_rows_are_rows_apart(name):
    """Ragged sources and targets in one batch are the sentences one by one."""
    model, batch = tiny_seq2seq(name, torch.float64).train(), BATCHES["ragged"]
    first, second = (
        (batch["input_ids"][:1], batch["labels"][:1]),
        (batch["input_ids"][1:, :4], batch["labels"][1:, :4]),
    )
    apart = sum(
        model(input_ids=source, labels=labels, num_items_in_batch=1).loss for source, labels in (first, second)
    )
    torch.testing.assert_close(model(**batch, num_items_in_batch=1).loss, apart, **TOLERANCE[name])


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_accumulated_gradients_are_the_batchs(name, size):
    model, batch = tiny_seq2seq(name, torch.float64, ngram_size=size, label_smoothing=0.1).train(), BATCHES["ragged"]
    whole = model(**batch)
    count = (batch["labels"] != -100).sum()
    halves = [
        model(**{key: value[i : i + 1] for key, value in batch.items()}, num_items_in_batch=count) for i in range(2)
    ]
    torch.testing.assert_close(halves[0].loss + halves[1].loss, whole.loss, **TOLERANCE[name])
    wanted = gradients(model, whole.loss)
    first, second = (gradients(model, half.loss) for half in halves)
    assert_same_gradients({key: first[key] + second[key] for key in wanted}, wanted, **TOLERANCE[name])


@pytest.mark.parametrize("name", NAMES)
def test_trainer(tmp_path, name):
    """The stock Trainer counts every label, and its steps and its evaluation are the reference's."""
    batch = BATCHES["ragged"]
    rows = [{key: value[i] for key, value in batch.items()} for i in range(2)]
    start, model = tiny_seq2seq(name, torch.float64), tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    arguments = Seq2SeqTrainingArguments(
        tmp_path,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=2,
        max_steps=1,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        optim="sgd",
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    with torch.no_grad():
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **text_of(batch))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(reference.translation_nll(logits, batch["labels"]).item())
    trainer.train()
    wanted = gradients(start, expected_loss(start, batch, num_items=(batch["labels"] != -100).sum())[0])
    before = dict(start.named_parameters())
    moved = {key: before[key] - value for key, value in model.named_parameters() if value.requires_grad}
    assert_same_gradients(moved, wanted, **TOLERANCE[name])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_never_whole(monkeypatch, name, label_smoothing):
    monkeypatch.setattr(loss_module, "LARGEST_CHUNK", 8)
    vocab_size, ids = 5000, random_ids(4, 24)
    model = tiny_seq2seq(name, vocab_size=vocab_size, label_smoothing=label_smoothing).train()
    with LargestTensor() as seen:
        model(ids, labels=ids).loss.backward()
    assert seen.largest <= vocab_size * model.config.d_model < ids.numel() * vocab_size / 5


@pytest.mark.parametrize("name", NAMES)
def test_stop_gradient_matters(name):
    """The reference without the detachment has the same loss and other gradients: the tests above would notice."""
    model, batch = tiny_seq2seq(name, torch.float64).train(), BATCHES["plain"]
    loss, (attached, _) = model(**batch).loss, expected_loss(model, batch, detach=False)
    torch.testing.assert_close(loss, attached, **TOLERANCE[name])
    weight = model.lm_head.weight
    grad, attached_grad = torch.autograd.grad(loss, weight)[0], torch.autograd.grad(attached, weight)[0]
    assert (grad - attached_grad).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_changes_nothing(name):
    model, batch = tiny_seq2seq(name, torch.float64).train(), BATCHES["ragged"]
    loss = model(**batch).loss
    wanted = gradients(model, loss)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layer = model.decoder.block[0].layer[0] if name == "t5" else model.model.decoder.layers[0].self_attn
    calls = []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    again = model(**batch).loss
    # On some machines the last bit is another, as it is for the stock T5: other places in memory.
    torch.testing.assert_close(again, loss, rtol=1e-13, atol=0)
    assert_same_gradients(gradients(model, again), wanted)
    # The layer ran a second time on the way back.
    assert len(calls) == 2


@pytest.mark.parametrize("num_items", [None, 0, torch.tensor(0)])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_no_labels_at_all_gives_zero_and_finite_gradients(name, size, num_items):
    model, batch = tiny_seq2seq(name, ngram_size=size, label_smoothing=0.1).train(), BATCHES["no labels at all"]
    output = model(**batch, num_items_in_batch=num_items)
    assert output.loss.item() == 0.0
    output.loss.backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trained)
    assert model.eval()(**batch, ensemble_lambda=0.4, num_items_in_batch=num_items).loss.item() == 0.0


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("size", "target"), [(1, "wdr"), (2, "simple"), (4, "wdr")])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_evaluation_is_the_ensembles(name, size, target, batch):
    model = tiny_seq2seq(name, torch.float64, ngram_size=size, ngram_target=target, label_smoothing=0.3)
    batch = BATCHES[batch]
    output = model(**batch, ensemble_lambda=0.4)
    logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **text_of(batch))
    torch.testing.assert_close(output.logits, logits, **TOLERANCE[name])
    mask = None if size == 1 else batch.get("decoder_attention_mask")
    expected = reference.translation_nll(logits, batch["labels"], mask)
    torch.testing.assert_close(output.loss, expected, **TOLERANCE[name])
    # Without labels, the same logits; and the losses of the heads are those of training.
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    inputs["decoder_input_ids"] = text_of(batch)["input_ids"]
    torch.testing.assert_close(model(**inputs, ensemble_lambda=0.4).logits, logits, **TOLERANCE[name])
    torch.testing.assert_close(output.head_losses, model.train()(**batch).head_losses, **TOLERANCE[name])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_several_lambdas_at_once(name):
    model, batch = tiny_seq2seq(name, torch.float64), BATCHES["left-padded decoder"]
    lambdas = [0.0, 0.25, 0.4, 1.0]
    together = model(**batch, ensemble_lambda=lambdas)
    one_by_one = [model(**batch, ensemble_lambda=value) for value in lambdas]
    assert together.logits is None
    torch.testing.assert_close(together.loss, torch.stack([output.loss for output in one_by_one]))
    for output in one_by_one:
        torch.testing.assert_close(output.head_losses, together.head_losses)
    assert len({round(loss, 6) for loss in together.loss.tolist()}) == 4


# Marian with a vocabulary for each side, T5 that scales its hidden states (the first) and T5 that does not (v1.1).
VARIANTS = [
    ("marian", {}),
    ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}),
    ("marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    ("marian", {"scale_embedding": True}),
    ("bart", {}),
    ("bart", {"tie_word_embeddings": False, "scale_embedding": True}),
    ("t5", {}),
    ("t5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
]


def fit(batch: dict, fields: dict) -> dict:
    """The batch in the variant's vocabulary."""
    size = fields.get("decoder_vocab_size", VOCAB_SIZE)
    decoder_side = [key for key in ("labels", "decoder_input_ids") if key in batch]
    return batch | {key: torch.where(batch[key] < 0, batch[key], batch[key] % size) for key in decoder_side}


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_variants_match_the_reference(name, fields):
    fields = {"ngram_size": 3, "label_smoothing": 0.1, **fields}
    batch = fit(BATCHES["holes"], fields)
    assert_loss_matches(name, batch, **fields)
    model = tiny_seq2seq(name, torch.float64, **fields)
    with torch.no_grad():
        output = model(**batch, ensemble_lambda=0.4)
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **text_of(batch))
    torch.testing.assert_close(output.logits, logits, **TOLERANCE[name])
    torch.testing.assert_close(output.loss, reference.translation_nll(logits, batch["labels"]), **TOLERANCE[name])


def test_t5_scales_its_hidden_states_or_not():
    scales = [tiny_seq2seq(name, **fields).config.scale_decoder_outputs for name, fields in VARIANTS if name == "t5"]
    assert scales == [True, False]


def pair(name, fields):
    """Ours with N = 1 and the stock model with the same weights."""
    ours, plain = tiny_seq2seq(name, ngram_size=1, **fields), plain_seq2seq(name, **fields)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def is_drawn_again(name: str, key: str) -> bool:
    """Stock T5 draws its shared embedding a second time, from the same distribution."""
    return name == "t5" and key.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight"))


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_one_gram_has_the_stock_parameters(name, fields):
    model_class, config_class, _, _, sizes = SEQ2SEQ[name]
    torch.manual_seed(0)
    ours, plain = model_class(config_class(**{**sizes, **fields, "ngram_size": 1})), plain_seq2seq(name, **fields)
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in plain.named_parameters()]
    state, expected = ours.state_dict(), plain.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[key], value) for key, value in expected.items() if not is_drawn_again(name, key))


@pytest.mark.parametrize("name", NAMES)
def test_heads_leave_the_trunk_alone(name):
    """The same seed gives the same trunk, with heads or without, and each head has 2 d² + 2 d parameters."""
    model_class, config_class, _, _, sizes = SEQ2SEQ[name]
    torch.manual_seed(0)
    model = model_class(config_class(**sizes, ngram_size=4))
    trunk, state = plain_seq2seq(name).state_dict(), model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in trunk.items() if not is_drawn_again(name, key))
    width = model.config.d_model
    assert len(model.ngram_heads) == 3
    for head in model.ngram_heads:
        assert sum(parameter.numel() for parameter in head.parameters()) == 2 * width**2 + 2 * width
    assert set(state) - set(trunk) == {key for key in state if key.startswith("ngram_heads.")}


@pytest.mark.parametrize("batch", ["ragged", "left-padded decoder", "padding inside, labels everywhere", "one word"])
@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_one_gram_is_the_stock_model(name, fields, batch):
    ours, plain = pair(name, fields)
    batch = fit(BATCHES[batch], fields)
    with torch.no_grad():
        output, expected = ours(**batch, ensemble_lambda=0.4), plain(**batch)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    loss, expected_loss = ours.train()(**batch).loss, plain.train()(**batch).loss
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert_same_gradients(gradients(ours, loss), gradients(plain, expected_loss), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_everything_else_in_the_output_is_the_stock_models(name):
    fields = {"attn_implementation": "eager"}
    ours, plain = tiny_seq2seq(name, **fields), plain_seq2seq(name, **fields)
    plain.load_state_dict(ours.state_dict(), strict=False)
    batch = {**BATCHES["ragged"], "output_hidden_states": True, "output_attentions": True}
    output, expected = ours(**batch), plain(**batch)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    # Stock T5 alone returns a cache even with labels.
    kept = set(expected) - {"past_key_values"}
    assert set(output) == kept | {"head_losses"}
    for key in kept - {"loss", "logits"}:
        torch.testing.assert_close(output[key], expected[key], rtol=0, atol=0)
    as_tuple = ours(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == len(output)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)


@pytest.mark.parametrize("name", NAMES)
def test_forward_takes_the_backbones_arguments(name):
    model = tiny_seq2seq(name)
    ours, stock = (inspect.signature(forward).parameters for forward in (model.forward, SEQ2SEQ[name][2].forward))
    assert [key for key in ours if key != "ensemble_lambda"] == [key for key in stock if key != "self"]
    assert ours["ensemble_lambda"].default is None
    source, decoder_ids = random_ids(2, 5), random_ids(2, 4, seed=1)
    by_position = model(source, torch.ones_like(source), decoder_ids)
    assert torch.equal(by_position.logits, model(source, decoder_input_ids=decoder_ids).logits)
    with pytest.raises(TypeError, match="multiple values"):
        model(source, input_ids=source)
    with pytest.raises(TypeError, match="positional arguments"):
        model(source, *[None] * 20)


@torch.no_grad()
def test_bart_reads_its_input_if_there_is_nothing_else():
    ours, plain = pair("bart", {})
    source = random_ids(2, 6)
    assert torch.equal(ours(source).logits, plain(source).logits)
    model = tiny_seq2seq("bart", torch.float64)
    expected = reference.ensembled_logits(model, shift_right(source), 0.4, encoder_ids=source)
    torch.testing.assert_close(model(source, ensemble_lambda=0.4).logits, expected)


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_the_final_bias_counts(name):
    """It shifts the loss of training, every head's included, the logits and the loss of several λ."""
    model, batch = tiny_seq2seq(name, torch.float64), BATCHES["plain"]
    other = copy.deepcopy(model)
    other.final_logits_bias.zero_()
    with torch.no_grad():
        shift = model(**batch, ensemble_lambda=0.4).logits - other(**batch, ensemble_lambda=0.4).logits
        torch.testing.assert_close(shift, model.final_logits_bias.expand_as(shift))
        grids = [either(**batch, ensemble_lambda=[0.0, 0.4]).loss for either in (model, other)]
        losses = [either.train()(**batch) for either in (model, other)]
    assert ((grids[0] - grids[1]).abs() > 1e-3).all()
    assert abs(losses[0].loss - losses[1].loss) > 1e-3
    assert ((losses[0].head_losses - losses[1].head_losses).abs() > 1e-3).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_encoder_outputs_in_place_of_the_source(name, training):
    model, batch = tiny_seq2seq(name, torch.float64).train(training), dict(BATCHES["ragged"])
    expected = model(**batch, ensemble_lambda=0.4)
    source = batch.pop("input_ids")
    encoded = model.get_encoder()(source, attention_mask=batch["attention_mask"])
    for outputs in (encoded, (encoded.last_hidden_state,)):
        again = model(**batch, encoder_outputs=outputs, ensemble_lambda=0.4)
        assert torch.equal(again.loss, expected.loss) and torch.equal(again.head_losses, expected.head_losses)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_bypasses_the_heads_is_an_error(name):
    batch = {**BATCHES["decoder ids of one's own"]}
    labels = batch.pop("labels")
    model = tiny_seq2seq(name).train()
    copied = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="none of the N-gram heads"):
        F.cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten()).backward()
    copied(**batch, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in copied.ngram_heads.parameters())
    frozen = tiny_seq2seq(name).train()
    frozen.ngram_heads.requires_grad_(False)
    frozen(**batch).logits.sum().backward()
    tiny_seq2seq(name, ngram_size=1).train()(**batch).logits.sum().backward()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("token", [VOCAB_SIZE, VOCAB_SIZE + 100, -1])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_outside_the_vocabulary(name, token, training):
    model = tiny_seq2seq(name).train(training)
    batch = BATCHES["decoder ids of one's own"]
    where = f"must lie in the vocabulary of {VOCAB_SIZE} tokens, got ids from"
    for key in ("input_ids", "decoder_input_ids", "labels"):
        wrong = batch[key].clone()
        wrong[1, 3] = token
        with pytest.raises(ValueError, match=f"^`{key}` {where}"):
            model(**{**batch, key: wrong})
    wrong = batch["labels"].clone()
    wrong[1, 3] = token
    with pytest.raises(ValueError, match=f"^`labels` {where}"):
        model(input_ids=batch["input_ids"], labels=wrong)


def test_each_side_has_its_vocabulary():
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
    model, source = tiny_seq2seq("marian", **fields), torch.tensor([[VOCAB_SIZE - 1, 4]])
    assert model(source, decoder_input_ids=torch.tensor([[22, 3]])).logits.shape == (1, 2, 23)
    for key in ("labels", "decoder_input_ids"):
        with pytest.raises(ValueError, match=f"^`{key}` must lie in the vocabulary of 23 tokens"):
            model(source, **{key: torch.tensor([[3, 23]])})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_labels_of_another_shape(name, training):
    model, ids = tiny_seq2seq(name).train(training), random_ids(2, 5)
    message = r"^`labels` must have the shape of the tokens they label, \(2, 5\), got"
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with pytest.raises(ValueError, match=message):
            model(ids, decoder_input_ids=ids, labels=labels)
    with pytest.raises(ValueError, match=message):
        model(ids, decoder_input_ids=ids, shift_labels=ids[:, 1:])


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
@pytest.mark.parametrize("name", NAMES)
def test_lambda_of_a_call(name, value):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    message = "^`ensemble_lambda` must be a number from 0 to 1, got"
    for call in (
        lambda: model(ids, labels=ids, ensemble_lambda=value),
        lambda: model(ids, labels=ids, ensemble_lambda=[0.1, value]),
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=value),
        lambda: model.generate(ids, ensemble_lambda=value, max_new_tokens=2),
        lambda: SEQ2SEQ[name][1](ensemble_lambda=value),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_several_lambdas_are_for_evaluation(name):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    message = "^Several values of `ensemble_lambda` at once are for evaluation mode, with `labels`"
    for call in (
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=[0.0, 0.1]),
        lambda: model(ids, labels=ids, ensemble_lambda=[]),
        lambda: model.train()(ids, labels=ids, ensemble_lambda=[0.0, 0.1]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_without_ids(name):
    """WDR needs to know the words in between, and so does the ensemble; simple heads learn without."""
    source, decoder_ids, labels = random_ids(2, 5), random_ids(2, 6, seed=1), random_ids(2, 6, seed=2)
    message = "pass `decoder_input_ids` instead of `decoder_inputs_embeds`"

    def embedded(model):
        # The decoder's own scaling comes after it.
        return model.get_decoder().embed_tokens(decoder_ids)

    for training, options in ((True, {}), (False, {}), (False, {"ngram_target": "simple", "ensemble_lambda": 0.4})):
        model = tiny_seq2seq(name, **options).train(training)
        with pytest.raises(ValueError, match=message):
            model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    model = tiny_seq2seq(name, ngram_target="simple").train()
    by_embeddings = model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, decoder_input_ids=decoder_ids, labels=labels).loss)
    # The source can come as embeddings for any head.
    model = tiny_seq2seq(name).train()
    by_embeddings = model(inputs_embeds=model.get_encoder().embed_tokens(source), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, labels=labels).loss)


@pytest.mark.parametrize("name", NAMES)
def test_no_text(name):
    model, ids = tiny_seq2seq(name), random_ids(2, 4)
    message = "^Pass either `decoder_input_ids` or `decoder_inputs_embeds`"
    with pytest.raises(ValueError, match=message):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match=message):
        model(ids, decoder_input_ids=ids, decoder_inputs_embeds=model.get_input_embeddings()(ids), labels=ids)
