"""`generate(use_mtp=True)` returns what `generate` returns, whatever it is asked for."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig, TextStreamer, pipeline
from transformers.generation import BaseStreamer, GenerationMixin

from tests.support.candidate_generator import NgramCandidateGenerator
from tests.support.options import DRAFTS, END, EVERYTHING, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both, row_lengths, were_drafts_right
from tests.support.tiny import left_pad, model_of, plain_model, prompts, random_ids, tiny_model
from tests.support.tokenizers import letter_tokenizer

NAMES = ["gpt2", "marian", "bart", "t5"]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@pytest.mark.parametrize("name", NAMES)
def test_scores_and_logits(name, ensemble_lambda, batch_size):
    model = model_of(name)
    plain, speculative = generate_both(model, prompts(batch_size, name), ensemble_lambda=ensemble_lambda, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_drafts_right(speculative)
    assert set(speculative) - set(plain) == {"speculation"}
    if ensemble_lambda:
        other = generate(model, prompts(batch_size, name), **EVERYTHING, **NO_END)
        assert not torch.allclose(other.logits[1], plain.logits[1], atol=0.01)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_ends(name, batch_size):
    """Every token of the text is the end once."""
    model, inputs = model_of(name), prompts(batch_size, name)
    free = generate(model, inputs, **EVERYTHING, **NO_END)
    ends_differ = False
    for end in free.sequences[:, -len(free.scores) :].unique().tolist():
        plain, speculative = generate_both(model, inputs, eos_token_id=end, pad_token_id=PAD)
        assert_same_generation(plain, speculative, ends=[end])
        # Without the scores no row waits for the others: it leaves the batch.
        bare = generate(model, inputs, eos_token_id=end, pad_token_id=PAD, **DRAFTS)
        assert torch.equal(bare, plain.sequences)
        ends_differ |= len(set(row_lengths(plain, [end]))) > 1
    assert ends_differ == (batch_size > 1)


def next_in_the_cycle(_: int, ids: torch.Tensor) -> list[int]:
    """After 2 comes 3, and so on; after 9 comes 2 again."""
    return [2 + (int(ids[-1]) - 1) % 8]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_ends_among_accepted_drafts(batch_size):
    """The text is a cycle that prompt lookup copies; drafts after the end do not count as accepted."""
    ids = torch.tensor(
        [[2, 3, 4, 5, 6, 7, 8, 9, 2, 3], [7, 8, 9, 2, 3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8, 9, 2, 3, 4, 5]]
    )
    options = {"prefix_allowed_tokens_fn": next_in_the_cycle, "eos_token_id": 9, "pad_token_id": PAD}
    inputs = {"input_ids": ids[:batch_size]}
    plain, speculative = generate_both(model_of("gpt2"), inputs, **options)
    assert row_lengths(plain, [9]) == [6, 1, 4][:batch_size]
    counts = speculative.speculation
    assert counts.num_copied > counts.num_copies_accepted > 0
    assert counts.num_row_forwards + counts.num_copies_accepted >= counts.num_tokens
    assert torch.equal(generate(model_of("gpt2"), inputs, **options, **DRAFTS), plain.sequences)
    assert_same_generation(plain, speculative, ends=[9])


@pytest.mark.parametrize("normalize_logits", [True, False])
def test_transition_scores(normalize_logits):
    model, ends = model_of("gpt2", seed=1), [END, 5, 9]
    plain, speculative = generate_both(model, prompts(3), eos_token_id=ends)
    lengths = row_lengths(plain, ends)
    assert len(set(lengths)) == 3
    wanted, actual = (
        model.compute_transition_scores(output.sequences, output.scores, normalize_logits=normalize_logits)
        for output in (plain, speculative)
    )
    for row, length in enumerate(lengths):
        torch.testing.assert_close(actual[row, :length], wanted[row, :length], rtol=0, atol=1e-4)


def assert_same_states(actual, wanted):
    """Tuples of steps, of layers, of tensors."""
    assert type(actual) is type(wanted)
    if isinstance(wanted, tuple):
        assert len(actual) == len(wanted)
        for one, other in zip(actual, wanted, strict=True):
            assert_same_states(one, other)
    else:
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_attentions_and_hidden_states(name):
    model = model_of(name)
    model.set_attn_implementation("eager")
    options = {"output_attentions": True, "output_hidden_states": True, **NO_END}
    plain, speculative = generate_both(model, prompts(1, name), **options)
    assert were_drafts_right(speculative)
    fields = {field for field in plain if "attentions" in field or "hidden_states" in field}
    assert len(fields) == (2 if name == "gpt2" else 5)
    for field in fields:
        assert_same_states(speculative[field], plain[field])
    assert set(speculative) == set(plain) | {"speculation"}


class Recorder(BaseStreamer):
    """Records the streamed values."""

    def __init__(self):
        self.streamed = []

    def put(self, value):
        self.streamed.append(value.tolist())

    def end(self):
        self.streamed.append("end")


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("output", [{}, EVERYTHING], ids=["tokens", "everything"])
def test_streamer(output, batch_size):
    """The streamer gets the prompt, then one token of every row at a time, padding included, then the end."""
    model = model_of("gpt2", seed=1)
    streamed = []
    for drafts in ({}, DRAFTS):
        streamer = Recorder()
        options = {"eos_token_id": [END, 5, 9], **output, **drafts}
        generated = generate(model, prompts(batch_size), streamer=streamer, **options)
        streamed.append(streamer.streamed)
    sequences = generated.sequences if output else generated
    assert streamed[0] == streamed[1] and streamed[0].count("end") == 1
    assert streamed[1] == [sequences[:, :6].tolist(), *sequences[:, 6:].T.tolist(), "end"]


def test_text_streamer(capsys):
    tokenizer, model = letter_tokenizer(), model_of("gpt2")
    texts = []
    for drafts in ({}, DRAFTS):
        tokens = generate(model, prompts(1), streamer=TextStreamer(tokenizer, skip_prompt=True), **drafts)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == tokenizer.decode(tokens[0, 6:]) + "\n"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_prompt_of_embeddings(batch_size):
    model, inputs = model_of("gpt2", ensemble_lambda=0.4), prompts(batch_size)
    for ids in ({}, {"input_ids": inputs["input_ids"]}):
        prompt = {"inputs_embeds": model.transformer.wte(inputs["input_ids"]), **inputs, "input_ids": None, **ids}
        prompt = {name: value for name, value in prompt.items() if value is not None}
        plain, speculative = generate_both(model, prompt, **NO_END)
        assert_same_generation(plain, speculative, ends=())
        assert speculative.sequences.shape[1] == 20 + (6 if ids else 0)
        assert were_drafts_right(speculative)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_prompt_in_chunks(batch_size):
    model, lengths = model_of("gpt2", ensemble_lambda=0.4), []
    model.transformer.register_forward_hook(lambda _, args, output: lengths.append(output[0].shape[1]))
    plain, speculative = generate_both(model, prompts(batch_size), prefill_chunk_size=4, **NO_END)
    assert lengths[:2] == [4, 2] and max(lengths) > 4
    assert_same_generation(plain, speculative, ends=())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_token_types(batch_size):
    """The generated tokens have the type of the prompt's last."""
    model = model_of("gpt2")
    types = torch.tensor([[3, 3, 3, 3, 7, 7], [3, 3, 3, 7, 7, 9], [7, 7, 7, 7, 7, 3]])[:batch_size]
    plain, speculative = generate_both(model, {**prompts(batch_size), "token_type_ids": types}, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    bare = generate(model, {**prompts(batch_size), "token_type_ids": types}, eos_token_id=22, **DRAFTS)
    assert torch.equal(bare, generate(model, {**prompts(batch_size), "token_type_ids": types}, eos_token_id=22))
    untyped = generate(model, prompts(batch_size), **EVERYTHING, **NO_END)
    assert not torch.allclose(untyped.logits[3], plain.logits[3], atol=0.01)


MASK = torch.tensor([[1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]])
PROMPTS = {
    "positions": {"position_ids": torch.tensor([[10, 11, 12, 13, 14, 15]] * 2 + [[0, 0, 1, 2, 30, 31]])},
    "the same positions for all": {"position_ids": torch.arange(10, 16)[None], "attention_mask": None},
    "a mask with holes": {"attention_mask": MASK},
    "one head": {"ngram_size": 2},
    "many heads": {"ngram_size": 12},
    "simple heads": {"ngram_target": "simple"},
    "one new token": {"max_new_tokens": 1},
    "two new tokens": {"max_new_tokens": 2},
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_and_heads_of_other_kinds(case):
    given = PROMPTS[case]
    fields = {name: value for name, value in given.items() if name.startswith("ngram_")}
    options = {name: value for name, value in given.items() if name not in fields}
    inputs = {name: value for name, value in {**prompts(3), **options}.items() if value is not None}
    plain, speculative = generate_both(model_of("gpt2", ensemble_lambda=0.4, **fields), inputs, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_drafts_right(speculative) or "new token" in case


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_left_padded_prompts_of_a_decoder(name):
    ids, mask = left_pad([random_ids(1, length, seed=length)[0] for length in (5, 2, 1)])
    inputs = {**prompts(3, name), "decoder_input_ids": ids, "decoder_attention_mask": mask}
    plain, speculative = generate_both(model_of(name, ensemble_lambda=0.4), inputs, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_drafts_right(speculative)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_up_to_the_last_position(name, batch_size):
    """Drafts do not reach beyond the positions that the model has."""
    model, inputs = model_of(name), prompts(batch_size, name)
    new = 64 - (6 if name == "gpt2" else 1)
    plain, speculative = generate_both(model, inputs, max_new_tokens=new, **NO_END)
    assert plain.sequences.shape[1] == 64
    assert_same_generation(plain, speculative, ends=())


def test_generation_config():
    model, inputs = model_of("gpt2"), prompts(3)
    options = {"max_new_tokens": 20, "do_sample": False, **EVERYTHING, **NO_END}
    speculative = model.generate(**inputs, generation_config=GenerationConfig(**options, **DRAFTS))
    assert_same_generation(model.generate(**inputs, generation_config=GenerationConfig(**options)), speculative, ())
    # So is `draft_threshold`: hardly any draft is worth a full forward pass.
    settings = GenerationConfig(**options, **{**DRAFTS, "draft_threshold": 1.0})
    dear = model.generate(**inputs, generation_config=settings).speculation
    assert sum(dear.num_drafted) < sum(speculative.speculation.num_drafted)


def test_settings_of_a_saved_model(tmp_path):
    model = tiny_model()
    model.generation_config.use_mtp = True
    model.generation_config.draft_threshold = 0.0
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    output = generate(loaded, prompts(3), **EVERYTHING)
    assert_same_generation(generate(model, prompts(3), use_mtp=False, **EVERYTHING), output)
    assert were_drafts_right(output)


def test_several_sequences_of_each_prompt():
    model, inputs = model_of("gpt2"), prompts(3)
    options = {"do_sample": True, "num_return_sequences": 3, **EVERYTHING, **NO_END, **DRAFTS}
    torch.manual_seed(0)
    output = generate(model, inputs, **options)
    assert output.sequences.shape == (9, 26)
    assert torch.equal(output.sequences[:, :6], inputs["input_ids"].repeat_interleave(3, dim=0))
    assert len(output.sequences.unique(dim=0)) == 9 and were_drafts_right(output)
    torch.manual_seed(0)
    assert torch.equal(generate(model, inputs, **options).sequences, output.sequences)
    # With one token to sample from, sampling is greedy search.
    greedy = generate(model, inputs, **{**options, "top_k": 1}).sequences
    assert torch.equal(greedy, generate(model, inputs, **NO_END).repeat_interleave(3, dim=0))


@pytest.mark.parametrize("drafts", ["prompt", "plain model", "model with heads"])
def test_other_drafts_are_those_of_transformers(drafts):
    model, inputs = model_of("gpt2"), prompts(1)
    options = {"prompt_lookup_num_tokens": 3}
    if drafts != "prompt":
        options = {"assistant_model": (plain_model if drafts == "plain model" else tiny_model)(torch.float64, seed=3)}
    assisted = generate(model, inputs, **options, **EVERYTHING, **NO_END)
    assert torch.equal(assisted.sequences, generate(model, inputs, **NO_END))
    assert "speculation" not in assisted
    with pytest.raises(ValueError, match="batch_size = 1"):
        generate(model, prompts(3), **options)


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_heads_in_the_loop_of_transformers(do_sample, monkeypatch):
    model, widths = model_of("gpt2"), []
    monkeypatch.setattr(type(model), "_assisted_decoding", GenerationMixin._assisted_decoding)

    def our_drafter(generation_config, *args, logits_processor, **kwargs):
        return NgramCandidateGenerator(model, generation_config, logits_processor)

    monkeypatch.setattr(model, "_get_candidate_generator", our_drafter)
    model.transformer.register_forward_hook(lambda _, args, output: widths.append(output[0].shape[1]))
    tokens = generate(model, prompts(1), do_sample=do_sample, **NO_END, **DRAFTS)
    assert tokens.shape == (1, 26) and len(widths) < 20 and max(widths[1:]) > 1
    if not do_sample:
        assert torch.equal(tokens, generate(model, prompts(1), **NO_END))


def test_pipeline():
    model, tokenizer = tiny_model(ensemble_lambda=0.4), letter_tokenizer()
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = ["hello", "dj", "hello"]
    options = {"max_new_tokens": 20, "do_sample": False, "batch_size": 3}
    forwards = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    plain = generator(texts, **options)
    count = len(forwards)
    assert generator(texts, **options, **DRAFTS) == plain and len(forwards) - count < count == 20


def test_adapter():
    heads = [f"ngram_heads.{i}.{layer}" for i in range(3) for layer in ("fc_in", "fc_out")]
    adapter = LoraConfig(target_modules=["c_attn"], modules_to_save=heads, fan_in_fan_out=True)
    model = get_peft_model(model_of("gpt2"), adapter).eval()
    before = generate(model, prompts(3), **EVERYTHING, **NO_END)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    plain, speculative = generate_both(model, prompts(3), ensemble_lambda=0.4, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_drafts_right(speculative) and not torch.equal(before.sequences, plain.sequences)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_threads_get_what_each_gets_alone(name):
    model = model_of(name)
    jobs = [({"input_ids": random_ids(1 + i % 3, 5, seed=i)}, 0.1 * i) for i in range(6)]

    def run(job):
        return generate(model, job[0], ensemble_lambda=job[1], **DRAFTS)

    alone = [generate(model, inputs, ensemble_lambda=value) for inputs, value in jobs]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(run, jobs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("copied", [0, 8], ids=["heads", "heads and copies"])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_statistics(name, copied, batch_size):
    model, inputs, widths = model_of(name), prompts(batch_size, name), []
    model.register_forward_hook(lambda _, args, output: widths.append(output.logits.shape[1]))
    options = {**EVERYTHING, **NO_END, **DRAFTS, "prompt_lookup_num_tokens": copied}
    output = generate(model, inputs, **options)
    counts = output.speculation
    assert counts.num_tokens == 20 * batch_size
    assert counts.num_forwards == len(widths)
    assert counts.num_forwards <= counts.num_row_forwards <= batch_size * counts.num_forwards
    assert counts.tokens_per_forward == counts.num_tokens / counts.num_row_forwards > 1
    drafted, accepted = counts.num_drafted, counts.num_accepted
    assert len(drafted) == max(widths) - 1 == (8 if copied else 3)
    for numbers in (drafted, accepted):
        assert numbers == sorted(numbers, reverse=True)
    assert counts.acceptance == [right / all_of_them for right, all_of_them in zip(accepted, drafted, strict=True)]
    # Each forward pass adds one token. Rows of a batch may be too long for all accepted drafts.
    surplus = counts.num_row_forwards + sum(accepted) - counts.num_tokens
    assert surplus == 0 if batch_size == 1 else surplus >= 0
    if batch_size == 1:
        assert sum(drafted) == sum(widths) - len(widths)
    assert (counts.num_copied > 0) == (copied > 0)
    assert counts.num_copies_accepted <= counts.num_copied <= sum(drafted)
    assert sum(accepted) > counts.num_copies_accepted
    fewer = generate(model, inputs, **{**options, "prompt_lookup_num_tokens": 0, "num_assistant_tokens": 1})
    assert len(fewer.speculation.num_drafted) == 1 and torch.equal(fewer.sequences, output.sequences)
