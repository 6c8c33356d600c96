"""Around `generate` of encoder-decoder models: processors, assistants, saved settings, threads, pipelines."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EncoderDecoderCache, pipeline

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support.encoder_decoder import STEPS, encode, padded_sources, prompt
from tests.support.errors import raises_naming
from tests.support.generation import assert_same_generation, assert_threads_change_nothing, differ, generate
from tests.support.options import NO_END, STRATEGIES
from tests.support.tiny import VOCAB_SIZE, plain_seq2seq, random_ids, stock_twin, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer


@torch.no_grad()
def test_processor_called_by_hand(name):
    model = tiny_seq2seq(name, torch.float64)
    sources, mask = padded_sources()
    encoder_inputs = {"input_ids": sources, "attention_mask": mask}
    processor = NgramEnsembleLogitsProcessor(model, 0.4, encoder_inputs=encoder_inputs)
    # One row per source, then three beams per source.
    for rows in (torch.arange(2), torch.arange(2).repeat_interleave(3)):
        ids = prompt(len(rows), 7)
        read = {key: value[rows] for key, value in encoder_inputs.items()}
        logits = model(**read, decoder_input_ids=ids).logits[:, -1]
        refined = model(**read, decoder_input_ids=ids, ensemble_lambda=0.4).logits[:, -1]
        assert not torch.allclose(logits, refined, atol=0.01)
        torch.testing.assert_close(processor(ids, logits), refined)
        torch.testing.assert_close(processor(ids, logits.log_softmax(-1)), refined.log_softmax(-1))
        forbidden = logits.clone()
        forbidden[:, 3] = -torch.inf
        assert (processor(ids, forbidden)[:, 3] == -torch.inf).all()


def test_processor_called_by_hand_needs_encoder_inputs(name):
    model = tiny_seq2seq(name)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    with raises_naming(ValueError, "`encoder_inputs`"):
        processor(prompt(1, 4), torch.zeros(1, VOCAB_SIZE))
    output = generate(model, random_ids(1, 4), logits_processor=[processor], max_new_tokens=3)
    assert_same_generation(output, generate(model, random_ids(1, 4), ensemble_lambda=0.4, max_new_tokens=3), 0.0)


@pytest.mark.parametrize("drafts", ["stock model", "model with heads", "prompt"])
def test_assisted_generation(name, drafts, monkeypatch):
    """The text is the ensemble's, also when drafts are rejected and the cache is cropped."""
    cropped, crop = [], EncoderDecoderCache.crop

    def spy(cache, tokens_to_remove):
        cropped.append(tokens_to_remove)
        crop(cache, tokens_to_remove)

    monkeypatch.setattr(EncoderDecoderCache, "crop", spy)
    model = tiny_seq2seq(name, torch.float64)
    sources, ids = random_ids(1, 6), prompt(1, 4).repeat(1, 3)
    options = {"max_new_tokens": 10, "decoder_input_ids": ids, **NO_END}
    expected = generate(model, sources, ensemble_lambda=0.4, use_cache=False, **options)
    assert differ(generate(model, sources, **options), expected)
    if drafts == "prompt":
        options["prompt_lookup_num_tokens"] = 3
    else:
        make = plain_seq2seq if drafts == "stock model" else tiny_seq2seq
        options["assistant_model"] = make(name, torch.float64, seed=3)
    by_argument = generate(model, sources, ensemble_lambda=0.4, **options)
    assert any(count < 0 for count in cropped)
    assert_same_generation(by_argument, expected)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    assert_same_generation(generate(model, sources, logits_processor=[processor], **options), expected)
    model.config.ensemble_lambda = 0.4
    assert_same_generation(generate(model, sources, **options), expected)


def test_assistant_with_heads_for_a_stock_model(name):
    plain, assistant = plain_seq2seq(name, torch.float64), tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(1, 6)
    options = {"max_new_tokens": 12, **NO_END}
    assert_same_generation(
        generate(plain, sources, assistant_model=assistant, **options), generate(plain, sources, **options)
    )


@pytest.mark.parametrize("option", ["greedy", "beam search"])
def test_lambda_is_not_passed_to_the_encoder(name, option):
    model = tiny_seq2seq(name)
    sources, ids = random_ids(2, 5), prompt(2, 4)
    encoder_kwargs = []
    model.get_encoder().register_forward_pre_hook(
        lambda _, args, kwargs: encoder_kwargs.append(kwargs), with_kwargs=True
    )
    model.generate(sources, ensemble_lambda=0.4, max_new_tokens=4, **STRATEGIES[option])
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    model.generate(sources, logits_processor=[processor], max_new_tokens=4, **STRATEGIES[option])
    assert len(encoder_kwargs) == 2
    model(sources, decoder_input_ids=ids, ensemble_lambda=0.4)
    assert len(encoder_kwargs) == 3
    assert all("input_ids" in kwargs and "ensemble_lambda" not in kwargs for kwargs in encoder_kwargs)


def test_encoder_outputs_and_embeddings_instead_of_a_source(name):
    model = tiny_seq2seq(name, torch.float64)
    sources, mask = padded_sources()
    options = {"attention_mask": mask, "ensemble_lambda": 0.4, "num_beams": 3}
    expected = generate(model, sources, **options)
    with torch.no_grad():
        encoded = encode(model, sources, mask)
    assert_same_generation(generate(model, None, encoder_outputs=encoded, **options), expected)
    embeddings = model.get_encoder().get_input_embeddings()(sources)
    assert_same_generation(generate(model, None, inputs_embeds=embeddings, **options), expected)


def test_settings_of_a_saved_model(name, tmp_path):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(2, 6, seed=2)
    expected = generate(model, sources, num_beams=3, max_new_tokens=6)
    model.generation_config.num_beams = 3
    model.generation_config.max_new_tokens = 6
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is type(model)
    output = loaded.generate(sources, return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert_same_generation(output, expected)
    assert torch.equal(output.beam_indices, expected.beam_indices)
    assert differ(generate(model, sources, num_beams=1, max_new_tokens=6), expected)


def test_threads_get_what_each_gets_alone(name):
    assert_threads_change_nothing(tiny_seq2seq(name), 6, max_new_tokens=10)


TEXTS = ["w19 w30 w9", "w9 w26", "w5 w35 w8 w9"]


def test_pipeline(name, tmp_path):
    """
    Of the pipelines, "text-generation" takes an encoder-decoder model, stock or ours, as an object. It leaves out as
    many tokens of the decoder's text as the source has; the whole is in `generated_token_ids`.
    """
    model, tokenizer = tiny_seq2seq(name, torch.float64), word_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    generator = pipeline("text-generation", model=loaded, tokenizer=AutoTokenizer.from_pretrained(tmp_path))
    stock = pipeline(
        "text-generation", model=stock_twin(model, plain_seq2seq(name, torch.float64)), tokenizer=tokenizer
    )
    options = {"max_new_tokens": STEPS, "do_sample": False}
    assert generator(TEXTS, **options) == stock(TEXTS, **options)
    assert generator(TEXTS, **options, num_beams=3, batch_size=3) == stock(TEXTS, **options, num_beams=3, batch_size=3)
    for beams in ({}, {"num_beams": 3}):
        plain = generator(TEXTS, **options, **beams, return_tensors=True)
        refined = generator(TEXTS, **options, **beams, return_tensors=True, ensemble_lambda=0.4)
        cut = generator(TEXTS, **options, **beams, return_full_text=False, ensemble_lambda=0.4)
        for i, text in enumerate(TEXTS):
            sources = tokenizer(text, return_tensors="pt").input_ids
            expected = [model.generate(sources, ensemble_lambda=value, **options, **beams)[0] for value in (0.0, 0.4)]
            assert plain[i][0]["generated_token_ids"] == expected[0].tolist()
            assert refined[i][0]["generated_token_ids"] == expected[1].tolist()
            text_after_prompt = tokenizer.decode(expected[1][sources.shape[1] :], skip_special_tokens=True)
            assert cut[i][0]["generated_text"] == text_after_prompt
        # With beam search, T5's text is the same with and without the ensemble.
        assert beams or plain != refined
