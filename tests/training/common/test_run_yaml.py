"""The `run.yaml` of every script is a settings file that gives the same run."""

from collections.abc import Callable

import pytest
import yaml

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.common.arguments import RunArguments
from ngram_wdr_hf.training.common.runs import all_runs, begin
from ngram_wdr_hf.training.glue.arguments import parse_glue_arguments
from ngram_wdr_hf.training.glue.run import single_runs
from ngram_wdr_hf.training.mlm.arguments import parse_mlm_arguments
from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
from tests.support.errors import raises_naming

PARSERS = {"clm": parse_clm_arguments, "mlm": parse_mlm_arguments, "nmt": parse_nmt_arguments}
HEADS = "--model_name_or_path somewhere --train_mode heads"
RUNS = [
    "clm --preset paper-tt-ptb --train_file a b --lambda_grid 0 0.3 --label_smoothing 0.2",
    "clm --compare --validation_percentage 7.5 --adam_epsilon 1e-12 --learning_rate 1e-05",
    f"clm {HEADS} --optim adamw_torch --metric_for_best_model best_perplexity --lr_scheduler_type cosine",
    f"clm {HEADS} --ngram_size 2 --gradient_checkpointing true",
    "clm --streaming true --train_file a --max_steps 10 --eval_strategy steps --eval_steps 5 --patience 2",
    "clm --recipe paper --ensemble fitted",
    "clm --eval_strategy no --num_train_epochs 1.5 --stride 4",
    "mlm --preset crammed --compare",
    "mlm --preset crammed --max_steps 20",
    f"mlm {HEADS} --masking span",
    "nmt --compare --num_beams 2 --metric_for_best_model chrf --max_length 20",
    "nmt --model_name_or_path somewhere --train_mode lora --lora_rank 4 --source_prefix a:b --reverse true",
]
GLUE = "--task cola sst2 --model_name_or_path somewhere --data_dir data"
GLUE_RUNS = [GLUE, f"{GLUE} --seeds 1 2 --max_length 16", f"{GLUE} --load_best_model_at_end true --learning_rate 1e-3"]


def settings_of(parse: Callable[..., RunArguments], *arguments: str) -> list[dict]:
    """Return the settings of each run: that of the options, and with `--compare` the others."""
    return [run.settings for run in all_runs(begin(parse(arguments, ""))[0])]


@pytest.mark.parametrize("options", RUNS)
def test_same_settings(options, tmp_path):
    task, *arguments = options.split()
    for settings in settings_of(PARSERS[task], *arguments):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(settings))
        assert yaml.safe_dump_all(settings_of(PARSERS[task], str(path))) == path.read_text()


def test_the_weights_of_a_checkpoint(tmp_path):
    """They are in `run.yaml`, which as a settings file begins with the weights that are there."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    path = tmp_path / "run.yaml"
    (settings,) = settings_of(parse_clm_arguments, "--model_name_or_path", str(tmp_path))
    path.write_text(yaml.safe_dump({**settings, "model_weights": "others"}))
    assert settings_of(parse_clm_arguments, str(path)) == [settings] and settings["model_weights"]


def test_steps_between_events_by_epoch():
    """They have no effect, so another `--logging_steps` is the same run."""
    for strategy, is_same in (("epoch", True), ("steps", False)):
        settings = [
            settings_of(parse_clm_arguments, "--eval_strategy", strategy, "--logging_steps", steps)
            for steps in ("2", "5")
        ]
        assert (settings[0] == settings[1]) == is_same


def test_preset_value_that_a_file_removes(tmp_path):
    """An option that is `None`, unlike in the preset, is in `run.yaml`."""
    path = tmp_path / "settings.yaml"
    path.write_text("patience: null\n")
    (settings,) = settings_of(parse_clm_arguments, str(path))
    assert settings["patience"] is None
    path.write_text(yaml.safe_dump(settings))
    assert parse_clm_arguments([str(path)], "").report.patience is None


def glue_settings(*arguments: str) -> list[dict]:
    return [run.settings for run in single_runs(parse_glue_arguments(arguments, ""))]


@pytest.mark.parametrize("options", GLUE_RUNS)
def test_same_settings_of_glue(options, tmp_path):
    for settings in glue_settings(*options.split()):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(settings))
        assert yaml.safe_dump_all(glue_settings(str(path))) == path.read_text()


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_metric_of_another_glue_task(metric):
    with raises_naming(InputError, "`--metric_for_best_model", metric):
        glue_settings("--task", "cola", *GLUE.split()[3:], "--metric_for_best_model", metric)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (HEADS, 3e-3),
        (f"{HEADS} --learning_rate 2e-4", 2e-4),
        (f"{HEADS} --preset paper-tf-small", 2.5e-4),
        (HEADS.replace("heads", "full"), 5e-5),
        (HEADS.replace("heads", "lora"), 5e-5),
    ],
)
def test_learning_rate_of_new_heads(options, rate, tmp_path):
    assert parse_clm_arguments(options.split(), "").training.learning_rate == rate
    path = tmp_path / "settings.yaml"
    # By file, or with a rate in the file.
    path.write_text("train_mode: heads\nmodel_name_or_path: somewhere\n")
    assert parse_nmt_arguments([str(path)], "").training.learning_rate == 3e-3
    path.write_text("learning_rate: 0.5\n")
    assert parse_mlm_arguments([str(path), *options.split()[:4]], "").training.learning_rate == 0.5
