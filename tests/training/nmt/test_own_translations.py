"""Heads of a frozen translation model: trained on its own translations, with the decoder's states kept on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, set_seed

from ngram_wdr_hf import WDRNgramMarianMTModel, with_ngram_heads
from ngram_wdr_hf.analysis.trained_run import load_run, load_text
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pair_batches import PairBatches
from ngram_wdr_hf.data.rows import RowStore
from ngram_wdr_hf.training.common.self_generated import SelfGeneration
from ngram_wdr_hf.training.nmt import own_translations
from ngram_wdr_hf.training.nmt.cached_pairs import CachedPairs
from ngram_wdr_hf.training.nmt.own_translations import translate_sources, with_translations
from tests.support.checkpoints import rewrite_config
from tests.support.errors import raises_naming
from tests.support.nmt_runs import NUM_PAIRS, QUICK, run, toy_pairs
from tests.support.pairs import IGNORED, PAD, pairs_of, random_lengths, tokens_of
from tests.support.scripts import as_arguments, finish, leave_out_plots, metrics_of, weights_of
from tests.support.tiny import SEQ2SEQ, tiny_seq2seq

END = 0


def options(num_sentences: int, **fields) -> SelfGeneration:
    fields = {"max_length": 12, "temperature": 0.0, "batch_size": 4, "seed": 3, **fields}
    return SelfGeneration(amount=num_sentences, **fields)


def translate(model, pairs, how: SelfGeneration, folder: Path) -> list[list[int]]:
    return [row.tolist() for row in translate_sources(model, pairs, how, PAD, folder, shows_progress=False)]


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_greedy_translations_are_those_of_each_source_alone(name, tmp_path):
    model, pairs = tiny_seq2seq(name, torch.float64, ngram_size=3), tokens_of(random_lengths(11, 7))
    rows = translate(model, pairs, options(11), tmp_path)
    assert sorted(row[0] for row in rows) == list(range(11))
    for i, *translation in rows:
        source = torch.tensor([pairs[i]["input_ids"]])
        alone = model.generate(source, do_sample=False, num_beams=1, max_new_tokens=len(translation))[0, 1:]
        assert translation == alone.tolist() and END not in translation[:-1] and len(translation) <= 11
    assert len({str(row[1:]) for row in rows}) > 3


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_interrupted_translation_continues(tmp_path, monkeypatch, temperature):
    model, pairs = tiny_seq2seq("marian", ngram_size=3), tokens_of(random_lengths(32, 7))
    how = options(13, temperature=temperature)
    whole = translate(model, pairs, how, tmp_path / "whole")
    assert len(whole) == 13
    generate, calls = own_translations.generate_rows, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(*args)

    monkeypatch.setattr(own_translations, "generate_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        translate(model, pairs, how, tmp_path / "parts")
    state = torch.get_rng_state()
    assert translate(model, pairs, how, tmp_path / "parts") == whole and len(calls) == 5
    assert torch.equal(torch.get_rng_state(), state)
    # More sentences are translated in addition, at most all.
    more = translate(model, pairs, options(99, temperature=temperature), tmp_path / "parts")
    assert more[:13] == whole and sorted(row[0] for row in more) == list(range(32))
    # They are a sample of the sources, in batches of similar length.
    lengths = [len(pairs[row[0]]["input_ids"]) for row in more]
    assert lengths != sorted(lengths)
    assert all(max(lengths[i : i + 4]) - min(lengths[i : i + 4]) <= 1 for i in range(0, 32, 4))
    for other in ({"temperature": 0.5}, {"batch_size": 5}, {"inputs": "0123"}, {"model": "another"}):
        with raises_naming(InputError, next(iter(other)), str(tmp_path / "parts")):
            translate(model, pairs, options(13, **{"temperature": temperature, **other}), tmp_path / "parts")


@pytest.mark.parametrize("keeps_others", [True, False])
def test_translations_replace_references(marian, keeps_others):
    tokenizer, pairs = AutoTokenizer.from_pretrained(marian), tokens_of(random_lengths(6, 7))
    words = tokenizer("the cat sees").input_ids
    rows = [np.array([4, *words]), np.array([1, 9])]
    mixed = with_translations(pairs, rows, tokenizer, keeps_others)
    sources, references = pairs["input_ids"][:], pairs["labels"][:]
    own = [(sources[4], words), (sources[1], [9])]
    assert pairs_of(mixed) == own + [(sources[i], references[i]) for i in (0, 2, 3, 5) if keeps_others]
    assert mixed["num_words"][:2] == [3, len(tokenizer.decode([9]).split())]
    assert mixed.features == pairs.features


def cache_of(model, folder: Path, count: int = 9) -> tuple[PairBatches, CachedPairs]:
    batches = PairBatches(tokens_of(random_lengths(count, 7)), 24, PAD)
    return batches, CachedPairs(batches, folder, model.get_output_embeddings().weight.shape[1])


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_cached_states_are_those_of_the_decoder(name, tmp_path):
    """The loss and the heads' gradients from them are those of the model that reads the pairs, without running it."""
    # Smooth, so that rounding has a small effect.
    model = tiny_seq2seq(name, ngram_size=3, ngram_head_activation="gelu")
    batches, cached = cache_of(model, tmp_path)
    cached.fill(model, batch_size=1, shows_progress=False)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.bin")) == cached.num_bytes
    assert len(cached) == len(batches) > 2
    model.requires_grad_(False)
    model.ngram_heads.requires_grad_(True)
    for i in range(len(batches)):
        pairs, item = batches[i], cached[i]
        is_real = pairs["labels"] != IGNORED
        sources = {name: pairs[name] for name in ("input_ids", "attention_mask")}
        decoder_ids = model.prepare_decoder_input_ids_from_labels(pairs["labels"])
        output = model.eval()(**sources, decoder_input_ids=decoder_ids, return_last_hidden_state=True)
        assert torch.equal(item["decoder_input_ids"][is_real], decoder_ids[is_real])
        states = item["last_hidden_state"].float()
        torch.testing.assert_close(states[is_real], output.last_hidden_state[is_real], atol=2e-3, rtol=2e-3)
        assert torch.equal(item["labels"], output.logits.argmax(-1).masked_fill(~is_real, IGNORED))
        gradients = []
        with pytest.MonkeyPatch.context() as monkeypatch:
            uncached = {**sources, "decoder_input_ids": decoder_ids, "labels": item["labels"]}
            for inputs in (uncached, item):
                model.zero_grad(set_to_none=True)
                model.train()(**inputs).loss.backward()
                gradients.append([parameter.grad.clone() for parameter in model.ngram_heads.parameters()])
                for part in (model.get_encoder(), model.get_decoder()):
                    monkeypatch.setattr(part, "forward", lambda *args, **kwargs: pytest.fail("ran the backbone"))
        for one, other in zip(*gradients, strict=True):
            assert (one - other).norm() <= 5e-3 * one.norm()


def test_interrupted_cache_is_continued(tmp_path, monkeypatch):
    model = tiny_seq2seq("marian", ngram_size=3)
    cache_of(model, tmp_path / "whole")[1].fill(model, 1, False)
    predict, calls = WDRNgramMarianMTModel.ngram_predictions, []

    def interrupted(self, **inputs):
        calls.append(inputs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict(self, **inputs)

    monkeypatch.setattr(WDRNgramMarianMTModel, "ngram_predictions", interrupted)
    batches, parts = cache_of(model, tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        parts.fill(model, 1, False)
    parts.fill(model, 1, False)
    assert len(calls) == len(batches) + 1
    for name in ("states.bin", "greedy.bin", "inputs.bin"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


FROZEN = as_arguments(train_mode="heads", ngram_size=3, ensemble="lambda", lambda_grid=0, num_beams=1)
OWN = [*FROZEN, "--self_generated_batch_size", "16", "--self_generated"]


def labels_of(folder: Path) -> dict[int, list[int]]:
    return {int(row[0]): row[1:].tolist() for row in RowStore(folder / "self_generated").rows}


def test_run_on_own_translations_and_references(marian, pair_files, tmp_path, capsys):
    """Only the heads change; acceptance is in the log, the metrics and the printed lines."""
    folder, pairs = tmp_path / "run", [*pair_files["train"], *pair_files["validation"]]
    command = ["--model_name_or_path", marian, *pairs, *QUICK, *OWN, "50"]
    run(*command, "--output_dir", str(folder))
    printed = capsys.readouterr().out
    assert "50 with its own translations" in printed and " accepted " in printed
    trained, before = load_file(folder / "model.safetensors"), load_file(Path(marian) / "model.safetensors")
    assert all(torch.equal(trained[name], weight) for name, weight in before.items())
    evaluations = [entry for entry in metrics_of(folder)["history"] if "eval_head_1_acceptance" in entry]
    assert len(evaluations) == 2 and all(0 <= entry["eval_head_2_acceptance"] <= 1 for entry in evaluations)

    # The report on the run finds the pairs again: 50 translations, and 150 references.
    text = load_text(load_run(folder), "validation", 1000)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    references = tokenizer(text_target=[pair[1] for pair in toy_pairs(NUM_PAIRS["train"], 0)]).input_ids
    own = dict(list(labels_of(folder).items())[:50])
    targets = np.concatenate([own.get(i, reference) for i, reference in enumerate(references)])
    assert text.token_counts.tolist() == np.bincount(targets, minlength=len(text.token_counts)).tolist()
    # The tokens that cover 98 % of them are drafted.
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    drafted = model.draft_token_ids.numpy()
    assert np.isin(targets, drafted).mean() >= 0.98 > np.isin(targets, drafted[:-1]).mean()

    # Repeated, nothing is translated or trained.
    state = json.loads((folder / "trainer_state.json").read_text())
    run(*command, "--output_dir", str(folder))
    assert json.loads((folder / "trainer_state.json").read_text()) == state


def test_sources_without_references(marian, pair_files, tmp_path):
    """All that the model has not translated is left out. The run can be evaluated later."""
    folder, (option, source, *_) = tmp_path / "run", pair_files["train"]
    data = [option, source, *pair_files["validation"]]
    command = ["--model_name_or_path", marian, *QUICK, *OWN, "20", "--cache_hidden_states"]
    (result,) = run(*command, *data, "--output_dir", str(folder))
    own = dict(list(labels_of(folder).items())[:20])
    assert (folder / "hidden_states" / "greedy.bin").stat().st_size == 4 * sum(map(len, own.values()))
    (again,) = run("--do_train", "false", "--model_name_or_path", str(folder), "--num_beams", "1")
    assert again.scores["validation"].nll(0.0) == pytest.approx(result.scores["validation"].nll(0.0))
    # Without a validation set, there is nothing to hold out for it.
    with raises_naming(InputError, "`--train_target`", "validation set"):
        run(*command, option, source, "--output_dir", str(tmp_path / "other"))


@pytest.fixture(scope="module")
def cached_run(marian, pair_files, tmp_path_factory):
    """A run with nothing but own translations, with cached states, of a model without dropout."""
    folder = tmp_path_factory.mktemp("cached")
    model = str(shutil.copytree(marian, folder / "model"))
    rewrite_config(Path(model), dropout=0.0)
    command = ["--model_name_or_path", model, *pair_files["train"][:2], *pair_files["validation"], *QUICK, *OWN, "96"]
    command += as_arguments(max_steps=3, optim="sgd", learning_rate=1.0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        leave_out_plots(monkeypatch)
        return finish(run, folder / "run", *command, "--cache_hidden_states")


def test_interrupted_run_is_resumed(cached_run, tmp_path, monkeypatch):
    """While the model translates, while states are computed, and in training: text and weights are the same."""

    def stop_once(owner, name: str, after: int) -> None:
        original, calls = getattr(owner, name), []

        def interrupted(*args, **kwargs):
            calls.append(args)
            if len(calls) > after:
                monkeypatch.setattr(owner, name, original)
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, interrupted)

    for owner, name, after in (
        (own_translations, "generate_rows", 3),
        (CachedPairs, "compute", 3),
        (Trainer, "training_step", 2),
    ):
        stop_once(owner, name, after)
        with pytest.raises(KeyboardInterrupt):
            run(*cached_run.command, "--output_dir", str(tmp_path))
    run(*cached_run.command, "--output_dir", str(tmp_path))
    assert labels_of(tmp_path) == labels_of(cached_run.folder) and len(labels_of(tmp_path)) == 96
    assert weights_of(tmp_path) == weights_of(cached_run.folder)


def test_cached_and_uncached_training_agree(cached_run, tmp_path):
    """Up to rounding: greedy translations are the model's own most likely tokens."""
    *command, option = cached_run.command
    assert option == "--cache_hidden_states" and (cached_run.folder / "hidden_states").exists()
    run(*command, "--output_dir", str(tmp_path))
    assert labels_of(tmp_path) == labels_of(cached_run.folder) and not (tmp_path / "hidden_states").exists()
    set_seed(42)
    start = with_ngram_heads(command[1], ngram_size=3, ngram_head_reads="hidden+tokens").state_dict()
    cached, uncached = (load_file(folder / "model.safetensors") for folder in (cached_run.folder, tmp_path))
    assert torch.equal(cached.pop("draft_token_ids"), uncached.pop("draft_token_ids"))
    for name, weight in uncached.items():
        change = (weight - start[name]).norm()
        assert (cached[name] - weight).norm() <= 1e-3 * change
        assert bool(change > 0) == name.startswith("ngram_heads")


HEADS = ["--train_mode", "heads", "--model_name_or_path", "CHECKPOINT"]
BAD = {
    "own translations, all weights": (
        [*HEADS[2:], "--self_generated", "9"],
        ("`--self_generated`", "`--train_mode heads`"),
    ),
    "new model": (["--self_generated", "9", "--train_mode", "heads"], ("`--model_name_or_path`",)),
    "no sentences": ([*HEADS, "--self_generated", "0"], ("`--self_generated`",)),
    "temperature alone": ([*HEADS, "--self_generated_temperature", "1"], ("`--self_generated`",)),
    "another tokenizer": ([*HEADS, "--self_generated", "9", "--tokenizer", "bpe"], ("`--tokenizer bpe`",)),
    "FSDP": ([*HEADS, "--cache_hidden_states", "--fsdp", "full_shard"], ("`--cache_hidden_states`", "FSDP")),
    "cache of a model that changes": (["--cache_hidden_states"], ("`--cache_hidden_states`", "`--train_mode heads`")),
    "too small a limit": ([*HEADS, "--cache_hidden_states", "--cache_limit", "1e-9"], ("`--cache_limit`",)),
}


@pytest.mark.parametrize(("bad", "named"), BAD.values(), ids=BAD)
def test_bad_input(marian, pairs, tmp_path, bad, named):
    bad = [marian if value == "CHECKPOINT" else value for value in bad]
    with raises_naming(InputError, *named):
        run(*QUICK, *pairs, *bad, "--output_dir", str(tmp_path / "run"))


def test_no_room(marian, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    command = ["--model_name_or_path", marian, *FROZEN[:2], *pairs, *QUICK, "--cache_hidden_states"]
    with raises_naming(InputError, "`--cache_hidden_states`", str(tmp_path)):
        run(*command, "--output_dir", str(tmp_path / "run"))
