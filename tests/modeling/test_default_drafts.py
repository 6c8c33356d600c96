"""`use_mtp=True` in the `generation_config` of a model: a default, saved and loaded, left out if it is impossible."""

import copy
import json

import pytest
import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    GPT2LMHeadModel,
    QuantizedCache,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StaticCache,
)
from transformers.generation import SynthIDTextWatermarkingConfig

from ngram_wdr_hf.decoding.loop import SpeculativeDecoding
from tests.support.errors import raises_naming
from tests.support.reformer import tiny_reformer
from tests.support.side_by_side import generate
from tests.support.tiny import model_of, plain_model, prompts, random_ids, tiny_model, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer


@pytest.fixture
def draftings(monkeypatch) -> list[SpeculativeDecoding]:
    """Every generation with drafts, from here on."""
    started, run = [], SpeculativeDecoding.run

    def watched(self):
        started.append(self)
        return run(self)

    monkeypatch.setattr(SpeculativeDecoding, "run", watched)
    return started


def drafting(model):
    """Let a model draft by default."""
    model.generation_config.use_mtp = True
    return model


def test_saved_and_loaded(tmp_path, draftings):
    model, inputs = drafting(tiny_model(ensemble_lambda=0.4)), prompts(3)
    plain = generate(model, inputs, use_mtp=False)
    model.save_pretrained(tmp_path / "model")
    assert model.generation_config.use_mtp is True and "ngram_use_mtp" not in vars(model.generation_config)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    loaded.save_pretrained(tmp_path / "again")
    for folder in ("model", "again"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert loaded.generation_config.use_mtp is True and "ngram_use_mtp" not in vars(loaded.generation_config)
        del draftings[:]
        assert torch.equal(generate(loaded, inputs), plain) and len(draftings) == 1
        assert torch.equal(generate(loaded, inputs, use_mtp=False), plain) and len(draftings) == 1
    loaded.generation_config.use_mtp = None
    loaded.save_pretrained(tmp_path / "again")
    assert not AutoModelForCausalLM.from_pretrained(tmp_path / "again").generation_config.use_mtp


def test_written_by_hand(tmp_path, draftings):
    """Its own name works in the file as well."""
    tiny_model().save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_mtp": True}))
    generate(AutoModelForCausalLM.from_pretrained(tmp_path), prompts(1))
    assert len(draftings) == 1


def test_the_stock_class_generates_from_the_same_checkpoint(tmp_path):
    model, inputs = drafting(tiny_model()), prompts(3)
    model.save_pretrained(tmp_path)
    trunk = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(generate(trunk, inputs), generate(model, inputs, use_mtp=False))


WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 5, 7])
OBSTACLES = {
    "beam search": lambda model: {"num_beams": 2},
    "beam sample": lambda model: {"num_beams": 2, "do_sample": True},
    "sequences of beams": lambda model: {"num_beams": 3, "num_return_sequences": 2},
    "static": lambda model: {"cache_implementation": "static"},
    "static object": lambda model: {"past_key_values": StaticCache(config=model.config, max_cache_len=40)},
    "quantized": lambda model: {"past_key_values": QuantizedCache("fp8", model.config)},
    "no cache": lambda model: {"use_cache": False},
    "guidance": lambda model: {"guidance_scale": 1.5},
    "watermark": lambda model: {"watermarking_config": WATERMARK, "do_sample": True},
    "states of a batch": lambda model: {"output_hidden_states": True, "return_dict_in_generate": True},
}


@pytest.mark.parametrize("with_lookup", [False, True])
@pytest.mark.parametrize("name", OBSTACLES)
def test_left_out_where_it_is_not_possible(name, with_lookup, draftings, transformers_log):
    """The default gives the text of plain decoding and one line; the argument raises an error."""
    model, inputs = drafting(tiny_model(ensemble_lambda=0.4)), prompts(3)
    texts = []
    for use_mtp in (None, False):
        torch.manual_seed(0)
        options = OBSTACLES[name](model) | ({} if use_mtp is None else {"use_mtp": use_mtp})
        # An option of our drafts; without them, Transformers would use it for drafts of its own.
        model.generation_config.prompt_lookup_num_tokens = 4 if with_lookup and use_mtp is None else None
        output = generate(model, inputs, **options)
        texts.append(output if isinstance(output, torch.Tensor) else output.sequences)
    assert torch.equal(*texts) and draftings == []
    assert not any("You've set" in record.message for record in transformers_log.records if not with_lookup)
    with raises_naming(ValueError, "use_mtp"):
        generate(model, inputs, **OBSTACLES[name](model), use_mtp=True)
    model.generation_config.prompt_lookup_num_tokens = None
    generate(model, inputs)
    assert len(draftings) == 1


def test_left_out_with_sharded_weights(draftings):
    model, inputs = drafting(tiny_model()), prompts(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        text = generate(model, inputs, synced_gpus=True)
    finally:
        dist.destroy_process_group()
    assert draftings == [] and torch.equal(text, generate(model, inputs, use_mtp=False))


@pytest.mark.parametrize("make", [lambda: tiny_model(ngram_size=1), tiny_reformer], ids=["no heads", "reformer"])
def test_left_out_for_models_that_cannot_draft(make):
    model, inputs = make(), {"input_ids": random_ids(1, 4)}
    plain = generate(model, inputs)
    assert torch.equal(generate(drafting(model), inputs), plain)
    with raises_naming(ValueError, "use_mtp"):
        generate(model, inputs, use_mtp=True)


def test_line_says_why(monkeypatch):
    lines = []
    monkeypatch.setattr("ngram_wdr_hf.modeling.default_drafts.logger.warning_once", lines.append)
    model = drafting(tiny_model())
    generate(model, prompts(1), num_beams=2)
    generate(model, prompts(1), cache_implementation="static")
    assert "beam search" in lines[0] and "StaticLayer" in lines[1]
    assert all("default" in line and "\n" not in line for line in lines)


def test_other_drafters(draftings):
    """They take the place of the default."""
    model, inputs = drafting(tiny_model(torch.float64)), prompts(1)
    plain = generate(model, inputs, use_mtp=False)
    assistant, calls = plain_model(torch.float64), []
    assistant.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, inputs, assistant_model=assistant), plain)
    assert calls and draftings == []
    # The model as an assistant.
    assert torch.equal(generate(assistant, inputs, assistant_model=model), generate(assistant, inputs))


def test_generation_config_given(draftings):
    """A copy of the model's, as a server makes it, has the model's default; `False` in it wins."""
    model, inputs = drafting(tiny_model()), prompts(1)
    plain = generate(model, inputs, use_mtp=False)
    given = copy.deepcopy(model.generation_config)
    given.max_new_tokens = 20
    assert torch.equal(model.generate(**inputs, generation_config=given), plain) and len(draftings) == 1
    given.cache_implementation = "static"
    assert torch.equal(model.generate(**inputs, generation_config=given), plain) and len(draftings) == 1
    without = GenerationConfig(max_new_tokens=20, use_mtp=False, prompt_lookup_num_tokens=3)
    assert torch.equal(model.generate(**inputs, generation_config=without), plain) and len(draftings) == 1
    # Given by the caller alone, it is no default.
    model.generation_config.use_mtp = None
    with raises_naming(ValueError, "use_mtp", "num_beams"):
        model.generate(**inputs, generation_config=GenerationConfig(use_mtp=True, num_beams=2))


def test_bad_options_of_drafts_raise_an_error():
    with raises_naming(ValueError, "`draft_threshold`", "2"):
        generate(drafting(tiny_model()), prompts(1), draft_threshold=2)


def test_streamer(draftings):
    """It gets every token once, in order, and several per step."""

    class Recorder:
        def __init__(self):
            self.tokens, self.steps = [], []

        def put(self, tokens):
            self.tokens += tokens.flatten().tolist()
            self.steps.append(draftings[0].statistics.num_forwards if draftings else 0)

        def end(self):
            self.tokens.append("end")

    model, streamer = drafting(tiny_model()), Recorder()
    ids = generate(model, prompts(1), streamer=streamer)[0].tolist()
    assert streamer.tokens == [*ids, "end"]
    # Tokens arrive with the forward pass that accepts them: early, and some together.
    assert streamer.steps == sorted(streamer.steps) and len(set(streamer.steps)) > 4
    assert len(set(streamer.steps[1:])) < len(streamer.steps[1:])


def test_continuous_batching():
    model = tiny_model()
    prompt, settings = random_ids(1, 5)[0].tolist(), {"max_new_tokens": 5, "do_sample": False}
    small = ContinuousBatchingConfig(num_blocks=4, page_size=32, max_batch_tokens=64)
    expected = model.generate(torch.tensor([prompt]), **settings)[0, 5:].tolist()
    drafting(model)
    given = copy.deepcopy(model.generation_config)
    given.update(**settings)
    (output,) = model.generate_batch([prompt], given, continuous_batching_config=small).values()
    assert output.generated_tokens == expected


@pytest.mark.parametrize("num_beams", [1, 3])
def test_predict_with_generate(tmp_path, draftings, num_beams):
    model = drafting(tiny_seq2seq("marian"))
    rows = [
        {"input_ids": random_ids(1, 4, i)[0].tolist(), "labels": random_ids(1, 5, i)[0].tolist()} for i in range(4)
    ]
    arguments = Seq2SeqTrainingArguments(
        tmp_path,
        predict_with_generate=True,
        generation_num_beams=num_beams,
        generation_max_length=8,
        report_to="none",
        use_cpu=True,
    )
    trainer = Seq2SeqTrainer(model, arguments, data_collator=DataCollatorForSeq2Seq(word_tokenizer(), model))
    predicted = [trainer.predict(rows, **options).predictions for options in ({}, {"use_mtp": False})]
    assert (predicted[0] == predicted[1]).all() and bool(draftings) == (num_beams == 1)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_default_drafts_in_batches(name, draftings):
    model = drafting(model_of(name, ensemble_lambda=0.4))
    inputs = prompts(3, name)
    assert torch.equal(generate(model, inputs), generate(model, inputs, use_mtp=False)) and len(draftings) == 1
