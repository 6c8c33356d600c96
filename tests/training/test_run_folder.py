"""Folders of runs, on `ngram-wdr clm`: interrupted, repeated, prolonged, refused; options from files."""

import shutil
from functools import partial

import pytest
import yaml
from transformers import Trainer

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training import clm
from ngram_wdr_hf.training.options import RunTrainingArguments
from ngram_wdr_hf.training.run_folder import RunFolder, read_state, settings_of
from tests.support import scripts
from tests.support.errors import raises_naming
from tests.support.scripts import QUICK, as_arguments, contents, cut_off, figures_of, write_text

run, parsed = partial(scripts.run, "clm"), partial(scripts.parsed, "clm")


@pytest.fixture
def command(checkpoint, files) -> list[str]:
    """Of a model with dropout, whose random numbers a resumed run has to restore."""
    options = as_arguments(lr_scheduler_type="constant", learning_rate=1e-2, sample_tokens=0)
    return ["--model_name_or_path", checkpoint, *files, *QUICK["clm"], *options]


def test_killed_before_the_result(command, tmp_path, request):
    """After early stopping, or with early stopping still to come. The best checkpoint is not the last."""
    options = as_arguments(learning_rate=0.3, patience=3, max_steps=40, metric_for_best_model="loss")
    command = [*command, *options, "--save_total_limit", "100", "--output_dir"]
    run(*command, tmp_path / "complete")
    assert read_state(tmp_path / "complete").global_step in range(7, 40)
    for name, last_step in (("early", 6), ("late", None)):
        broken = tmp_path / name
        cut_off(tmp_path / "complete", broken, last_step)
        # The file that marks the training as complete may be cut off.
        (broken / "trainer_state.json").write_text('{"epoch": 1')
        if last_step is None:
            request.getfixturevalue("without_training")
        run(*command, broken)
        assert figures_of(broken) == figures_of(tmp_path / "complete")


def test_streamed_run_stopped_in_a_later_pass(files, tmp_path, monkeypatch):
    """By Ctrl-C. The text has four or five batches."""
    text, step = write_text(tmp_path / "short.txt", lines=30, seed=0), Trainer.training_step
    options = [*QUICK["clm"], *as_arguments(streaming="true", shuffle_buffer=10, max_steps=8)]
    options = ["--train_file", text, *files[2:], *options, "--output_dir"]

    def interrupted(trainer, *args, **kwargs):
        if trainer.state.global_step == 7:
            raise KeyboardInterrupt
        return step(trainer, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "training_step", interrupted)
        run(*options, tmp_path / "parts")
    for name in ("parts", "whole"):
        run(*options, tmp_path / name)
    assert figures_of(tmp_path / "parts") == figures_of(tmp_path / "whole")


def test_longer_run(command, tmp_path, monkeypatch):
    """It resumes, and equals one from the start. No results of the shorter run stay with its model."""
    folder, whole = tmp_path / "parts", tmp_path / "whole"
    run(*command, "--output_dir", folder)
    (folder / "evaluation.md").write_text("| model |")
    (folder / "training.png").write_bytes(b"PNG")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(clm, "load_trained", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        run(*command, "--max_steps", "6", "--output_dir", folder)
    left = {path.name for path in folder.iterdir()}
    assert left.isdisjoint({"metrics.json", "README.md", "evaluation.md", "training.png"})
    for path in (folder, whole):
        run(*command, "--max_steps", "6", "--output_dir", path)
    assert figures_of(folder) == figures_of(whole)
    before = contents(folder)
    with raises_naming(InputError, str(folder / "checkpoint-6"), "longer"):
        run(*command, "--max_steps", "3", "--output_dir", folder)
    assert contents(folder) == before


def test_refused_folders(finished, tmp_path):
    command, complete, *_ = finished("clm")
    folder, new = shutil.copytree(complete, tmp_path / "run"), tmp_path / "new"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    before = contents(tmp_path)
    with raises_naming(InputError, f"`--output_dir {folder}`", "ngram_size: saved None, now 3"):
        run(*command, "--output_dir", folder, "--ngram_size", "3")
    with raises_naming(InputError, f"`--output_dir {tmp_path / 'thesis'}`"):
        run(*command, "--output_dir", tmp_path / "thesis")
    claimed = RunFolder.claimed({}, RunTrainingArguments(str(new), report_to="none"))
    with claimed, raises_naming(InputError, f"`--output_dir {new}`", "another run"):
        run(*command, "--output_dir", new)
    assert not {path for path in contents(tmp_path).keys() - before.keys() if path.name != ".lock"}


def test_settings_file(tmp_path):
    """The command line wins, and the preset comes last. Values are words, as on the command line."""
    path = tmp_path / "settings.yaml"
    path.write_text(
        "preset: paper-tf-small\neval_strategy: no\nlearning_rate: 1e-3\ntrain_file: a.txt\nlambda_grid: [0, 0.4]\n"
        "save_total_limit: null\nstreaming: yes\nseed: 3\nprompt: 2024-01-01\nlr_scheduler_kwargs: {power: 2}\n"
    )
    options, model, training = parsed(str(path), "--seed", "4")
    assert (model.preset, options.prompt, training.seed) == ("paper-tf-small", "2024-01-01", 4)
    assert (options.train_file, options.streaming, options.lambda_grid) == (["a.txt"], True, [0.0, 0.4])
    assert (training.eval_strategy, training.learning_rate, training.save_total_limit) == ("no", 1e-3, None)
    assert training.lr_scheduler_kwargs == {"power": 2} and training.per_device_train_batch_size == 32
    # Checkpoints are saved at evaluations.
    _, _, training = parsed("--eval_strategy", "steps", "--logging_steps", "30")
    assert training.eval_steps == training.save_steps == 30
    # New heads alone learn faster by default, unless a preset says otherwise.
    rates = {"full": 5e-5, "heads": 3e-3, "heads --preset paper-tf-small": 2.5e-4, "heads --learning_rate 2": 2}
    for mode, rate in rates.items():
        assert parsed("--model_name_or_path", "some", "--train_mode", *mode.split())[2].learning_rate == rate


HEADS = "--model_name_or_path somewhere --train_mode heads"
RUNS = [
    "--preset paper-tt-ptb --train_file a b --lambda_grid 0 0.3 --label_smoothing 0.2",
    "--compare --validation_percentage 7.5 --adam_epsilon 1e-12 --learning_rate 1e-05",
    f"{HEADS} --metric_for_best_model best_perplexity --lr_scheduler_type cosine --config_overrides head_gradient=0.5",
    "--streaming true --train_file a --max_steps 10 --eval_strategy steps --eval_steps 5 --patience 2",
]


@pytest.mark.parametrize("options", RUNS)
def test_run_yaml_is_a_settings_file_of_the_same_run(options, tmp_path):
    path = tmp_path / "run.yaml"
    settings = settings_of(*parsed(*options.split()))
    path.write_text(yaml.safe_dump(settings))
    assert settings_of(*parsed(str(path))) == settings
