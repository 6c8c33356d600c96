"""What holds for every script: resumed runs, repeated and evaluated ones, comparisons, bad options."""

import json
import re
import time
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from ngram_wdr_hf.data.errors import InputError
from tests.support.errors import raises_naming
from tests.support.processes import PATIENCE
from tests.support.scripts import (
    EVALUATE,
    SCRIPTS,
    as_arguments,
    contents,
    figures_of,
    metrics_of,
    run,
    translations_of,
    weights_of,
    write_text,
)

AUTO = {"clm": AutoModelForCausalLM, "mlm": AutoModelForMaskedLM, "nmt": AutoModelForSeq2SeqLM}
FORTY_STEPS = {"max_steps": 40, "eval_steps": 10}


@pytest.mark.parametrize("task", SCRIPTS)
def test_killed_and_resumed(task, commands, checkpoint, tmp_path):
    """
    After `kill -9`, the same command ends with the bits of an uninterrupted run: with dropout, and with the masks of
    each epoch. Ten steps of `glue` are an epoch.
    """
    # A few steps per epoch.
    short_text = write_text(tmp_path / "train.txt", lines=12, seed=0)
    options = {
        "clm": as_arguments(**FORTY_STEPS, model_name_or_path=checkpoint, sample_tokens=0),
        "mlm": as_arguments(**FORTY_STEPS, train_file=short_text, masking="span", wdr_compose="masked"),
        "nmt": as_arguments(**FORTY_STEPS, ngram_size=3, learning_rate=1e-2),
        "glue": as_arguments(per_device_train_batch_size=5, num_train_epochs=4),
    }
    command = [*commands[task], *options[task], "--output_dir"]
    complete, broken = (tmp_path / name / ("sst2/seed-42" if task == "glue" else "") for name in ("one", "two"))
    run(task, *command, tmp_path / "one")
    mp.set_forkserver_preload([run.__module__])
    process = mp.get_context("forkserver").Process(target=run, args=(task, *command, tmp_path / "two"))
    process.start()
    deadline = time.monotonic() + PATIENCE
    while not (broken / "checkpoint-10" / "trainer_state.json").exists():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (broken / "model.safetensors").exists()
    # Simulate a kill during saving.
    (broken / "checkpoint-40").mkdir()
    (broken / "checkpoint-40" / "trainer_state.json").write_text('{"epoch": 1')
    run(task, *command, tmp_path / "two")
    assert weights_of(broken) == weights_of(complete)
    if task == "glue":
        assert len({(tmp_path / name / "glue_metrics.json").read_text() for name in ("one", "two")}) == 1
        return
    assert figures_of(broken) == figures_of(complete)
    assert task != "nmt" or translations_of(broken) == translations_of(complete)
    assert task != "mlm" or metrics_of(complete)["history"][-1]["epoch"] > 5


# Options that an evaluation does not take from the run.
SEARCH = {"clm": [], "mlm": [], "nmt": as_arguments(num_beams=2)}


@pytest.mark.parametrize("task", AUTO)
def test_repeated_and_evaluated(task, finished, tmp_path, request):
    """A finished run is not trained again. Its model is evaluated on its data, with the same figures."""
    command, folder, result, _ = finished(task)
    before, arguments = contents(folder), [*EVALUATE, folder, *SEARCH[task], "--disable_tqdm", "true"]
    alone = run(task, *arguments, "--output_dir", tmp_path / "tables")
    assert alone.ensemble == result.ensemble and alone.samples == result.samples
    for split, figures in metrics_of(folder)["splits"].items():
        found = json.loads((tmp_path / "tables" / "evaluation.json").read_text())["splits"][split]
        for name in {"perplexity", "token_perplexity", "bleu", "chrf", "accuracy"} & found.keys():
            # λ of another grid may be added or left out, but not the model itself.
            one, other = ([*value] if isinstance(value, list) else [value] for value in (found[name], figures[name]))
            assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert contents(folder) == before
    assert {path.name for path in contents(tmp_path)} == {"evaluation.md", "evaluation.json"}
    request.getfixturevalue("without_training")
    assert run(task, *command, "--output_dir", folder).splits == result.splits
    assert weights_of(folder) == before[folder / "model.safetensors"]


@pytest.mark.parametrize(
    ("task", "options", "names"),
    [
        ("clm", ["--ngram_target", "simple"], {"simple N=4": "", "plain": "plain", "wdr N=4": "wdr"}),
        ("mlm", [], {"wdr N=3": "", "plain": "plain", "wdr N=3, masked tokens": "masked"}),
        ("nmt", [], {"wdr N=4": "", "plain": "plain", "bow": "bow", "simple N=4": "simple"}),
    ],
)
def test_compare(task, options, names, commands, tmp_path, capsys, monkeypatch, request):
    """All kinds, in one table, start from the same weights and train on the same batches. They are trained once."""
    monkeypatch.chdir(tmp_path)
    command = [*commands[task], *options, "--compare"]
    result = run(task, *command, "--output_dir", "run")
    # The last table is that of all models.
    rows = re.findall(r"^(\S.*?)  +test +[\d,]+ ", capsys.readouterr().out, flags=re.MULTILINE)
    assert [*dict.fromkeys(name for name in rows[-2 * len(names) :] if name in names)] == [*names]
    folders = {name: Path("run") / folder for name, folder in names.items()}
    metrics = {name: metrics_of(folder) for name, folder in folders.items()}
    assert [each["model"] for each in metrics.values()] == [*names]
    configs = {name: AUTO[task].from_pretrained(folder).config for name, folder in folders.items()}
    assert configs["plain"].ngram_size == 1
    assert all(config.ngram_target == name.split()[0] for name, config in configs.items() if "N=" in name)
    main = "masked_word_loss" if task == "mlm" else "next_word_loss"
    first = [next(entry for entry in each["history"] if "loss" in entry) for each in metrics.values()]
    assert [entry[main] for entry in first] == [pytest.approx(first[0][main], rel=1e-5)] * len(first)
    assert len({entry["loss"] for entry in first}) == len(first)
    assert len({(folder / "tokenizer.json").read_bytes() for folder in folders.values()}) == 1
    # Without heads, λ changes nothing.
    assert task == "mlm" or metrics["plain"]["splits"]["test"]["lambda"] == [0.0]
    Path("run").rename("moved")
    request.getfixturevalue("without_training")
    assert run(task, *command, "--output_dir", "moved").splits == result.splits


# By script: options, or a settings file, and what the error names.
BAD = {
    "clm": {
        "--lerning_rate 1": "`--learning_rate`",
        "--preset huge": "--preset",
        "--ngram_size 16": "`--block_size`",
        "--ngram_size 3 --ngram_target none": "`--ngram_target none`",
        "--train_mode heads": "`--model_name_or_path`",
        "--compare --ngram_size 1": "`--compare`",
        "--streaming --max_steps -1": "`--max_steps`",
        "--label_smoothing_factor 0.1": "`--label_smoothing_factor`",
        "--config_overrides layers=3": "`--config_overrides layers`",
        "learning_rat: 1": "`--learning_rate`",
    },
    "mlm": {"--mlm_probability 0": "`--mlm_probability`", "--model_name_or_path GPT2": "`mask_token`"},
    "nmt": {
        "--per_device_train_batch_size 8": "`--batch_tokens`",
        "--use_mtp": "`--num_beams 1`",
        "--dataset_name wmt14": "`--dataset_name`",
    },
    "glue": {"--dataset_name glue": "`--data_dir`", "--eval_strategy steps": "`--eval_strategy`"},
}


@pytest.mark.parametrize(("task", "options"), [(task, options) for task in BAD for options in BAD[task]])
def test_bad_options(task, options, commands, checkpoint, tmp_path):
    arguments = [*commands[task], *options.replace("GPT2", checkpoint).split()]
    if ": " in options:
        (tmp_path / "settings.yaml").write_text(options)
        arguments = [str(tmp_path / "settings.yaml")]
    with raises_naming(InputError, BAD[task][options]):
        run(task, *arguments, "--output_dir", tmp_path / "run")
    assert not list((tmp_path / "run").glob("[!.]*"))
