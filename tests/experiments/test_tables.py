"""Tables: their commands are those of the scripts, at every scale."""

from pathlib import Path

import pytest
from runner.tables import Experiment, load_experiment, merge, table_names

from ngram_wdr_hf import WDRNgramMarianMTModel
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.model import LANGUAGE_MODELS
from ngram_wdr_hf.training.common.arguments import ModelArguments, parse_overrides
from ngram_wdr_hf.training.common.settings import check_together
from ngram_wdr_hf.training.glue.arguments import parse_glue_arguments
from ngram_wdr_hf.training.mlm.arguments import parse_mlm_arguments
from ngram_wdr_hf.training.mlm.model import MASKED_MODELS
from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
from tests.support.errors import raises_naming

SCALES = ("paper", "small", "smoke")
PARSERS = {
    "train_clm.py": parse_clm_arguments,
    "present_heads.py": parse_clm_arguments,
    "train_nmt.py": parse_nmt_arguments,
    "train_mlm.py": parse_mlm_arguments,
    "finetune_glue.py": parse_glue_arguments,
}
PTB_SMALL = (
    "--vocab_size 4000 --config_overrides n_layer=3 n_embd=96 n_head=4 resid_pdrop=0.3 embd_pdrop=0.3 attn_pdrop=0.3"
    "{overrides} --label_smoothing 0.1 --learning_rate 0.001 --lr_scheduler_type constant --warmup_steps 0 "
    "--block_size 64 --per_device_train_batch_size 16 --per_device_eval_batch_size 16 --num_train_epochs 20 "
    "--patience 100 --num_workers 1 --sample_tokens 0 --disable_tqdm true"
)


def experiments() -> list[Experiment]:
    return [load_experiment(table, scale) for table in table_names() for scale in SCALES]


def check_fields(model: ModelArguments, script: str) -> None:
    """Check that the configuration has all fields of `--config_overrides`."""
    models = {**LANGUAGE_MODELS, **MASKED_MODELS}
    is_translation = script == "train_nmt.py"
    model_class = WDRNgramMarianMTModel if is_translation else models[model.presets[model.preset].backbone]
    config_class = model_class.config_class
    known = {*config_class.__dataclass_fields__, *config_class.attribute_map}
    assert parse_overrides(model.config_overrides).keys() <= known


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_every_command_is_accepted(experiment, tmp_path):
    runs = experiment.runs(tmp_path, tmp_path, [1])
    assert len({run.folder for run in runs}) == len(runs) > 1
    for run in runs:
        for script, *words in run.commands:
            assert Path(script).is_file()
            arguments = PARSERS[Path(script).name](words, "")
            if script.endswith("finetune_glue.py"):
                assert arguments.model.model_name_or_path == str(run.folder)
            else:
                check_together(arguments)
                check_fields(arguments.model, Path(script).name)
                assert arguments.training.seed == 1 and arguments.training.output_dir == str(run.folder)


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_names_in_a_table_exist(experiment):
    systems = experiment.content["systems"]
    assert {"plain", *experiment.setup.get("system_options", {})} <= systems.keys()
    for derived, source in experiment.without_heads.items():
        assert systems[source]["options"]["recipe"] == "free" and derived in experiment.systems
    for claim in experiment.content["claims"]:
        sides = [side for pair in claim.get("pairs", ()) for side in (pair["of"], pair["to"])]
        assert {system for system, _ in sides} <= systems.keys()
    assert ("data" in next(iter(experiment.groups.values()))) <= (experiment.scale != "smoke")


@pytest.mark.parametrize(
    "system, script, overrides, options",
    [
        ("free-wdr-4", "train_clm.py", "", "--recipe free --ngram_head_reads hidden --head_sample_rate 1"),
        (
            "simple-3",
            "train_clm.py",
            "",
            "--recipe paper --ngram_target simple --ngram_size 3 --ensemble fitted --metric_for_best_model loss",
        ),
        (
            "present",
            "experiments/present_heads.py",
            "",
            "--recipe free --ngram_head_reads hidden --head_sample_rate 1",
        ),
        ("wide", "train_clm.py", " n_inner=481", "--ngram_target none"),
    ],
)
def test_small_penn_treebank(system, script, overrides, options, tmp_path):
    run = load_experiment("ptb", "small").run("ptb", system, 3, tmp_path / "runs", tmp_path)
    files = f"--train_file {tmp_path}/runs/data/8000-lines-ptb.train.txt --validation_file {tmp_path}/ptb.valid.txt"
    expected = f"{files} --test_file {tmp_path}/ptb.test.txt {PTB_SMALL.format(overrides=overrides)} {options}"
    expected += f" --seed 3 --output_dir {tmp_path}/runs/ptb/{system}-s3"
    assert run.commands[0][0].endswith(f"/{script}")
    assert " ".join(run.commands[0][1:]) == expected


def test_a_plain_model_with_a_free_twin_needs_no_run(tmp_path):
    experiment = load_experiment("ptb", "small")
    assert {run.system for run in experiment.runs(tmp_path, tmp_path, [1])} == {*experiment.systems} - {"plain"}
    assert experiment.select(["plain", "wdr-2"]) == [("ptb", "free-wdr-4"), ("ptb", "wdr-2")]
    assert ("ptb", "plain") in load_experiment("ptb", "paper").select(None)


def test_seeds_come_first(tmp_path):
    runs = load_experiment("ptb", "small").runs(tmp_path, tmp_path, [2, 1], ["wdr-2", "ptb/wdr-3"])
    assert [run.name for run in runs] == [f"ptb/wdr-{n} seed {seed}" for seed in (2, 1) for n in (2, 3)]


def test_options_are_merged():
    merged = merge({"a": 1, "config_overrides": ["x=1"]}, {"a": 2}, {"config_overrides": ["y=2"]})
    assert merged == {"a": 2, "config_overrides": ["x=1", "y=2"]}


def test_texts_are_cut_once(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"ptb.{name}.txt").write_text("".join(f"line {i}\n" for i in range(9000)))
    experiment = load_experiment("ptb", "small")
    experiment.prepare(tmp_path / "runs", tmp_path)
    cut = tmp_path / "runs" / "data" / "8000-lines-ptb.train.txt"
    assert cut.read_text().splitlines() == [f"line {i}" for i in range(8000)]
    before = cut.stat().st_mtime_ns
    experiment.prepare(tmp_path / "runs", tmp_path)
    assert cut.stat().st_mtime_ns == before


def test_missing_data(tmp_path):
    experiment = load_experiment("ptb", "small")
    with raises_naming(InputError, "--data", "ptb.train.txt"):
        experiment.prepare(tmp_path, None)
    with raises_naming(InputError, str(tmp_path), "ptb.train.txt"):
        experiment.prepare(tmp_path, tmp_path)


def test_unknown_names():
    with raises_naming(InputError, "'x'", "ptb"):
        load_experiment("x", "small")
    with raises_naming(InputError, "--scale x", "smoke"):
        load_experiment("ptb", "x")
    with raises_naming(InputError, "--only x", "wdr-2"):
        load_experiment("ptb", "small").select(["wdr-3", "x"])
