"""`train_clm.py`, from its arguments to what it leaves."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, pipeline

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.common.run_folder import RunFolder
from tests.support.clm_runs import QUICK, run
from tests.support.processes import run_and_kill, run_without_package
from tests.support.scripts import as_arguments, card_code, contents, metrics_of

LEAVES = ["README.md", "lambda_sweep.png", "metrics.json", "model.safetensors", "run.yaml", "tokenizer.json"]
LEAVES += ["training.png"]


@pytest.mark.plots
@pytest.mark.parametrize("recipe", ["free", "paper"])
def test_run_and_its_files(files, tmp_path, capsys, monkeypatch, recipe):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    command = [*files, "--output_dir", str(folder), *QUICK, "--max_steps", "40", "--eval_steps", "20"]
    (result,) = run(*command, "--recipe", recipe, "--head_sample_rate", "1", "--report_to", "tensorboard")
    printed = capsys.readouterr().out
    for name in LEAVES:
        assert (folder / name).stat().st_size > 0, name
    metrics = metrics_of(folder)
    validation = metrics["splits"]["validation"]
    assert validation["lambda"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    # 40 sentences of 8 words (three have names of two words) and <eos>.
    text = Path(files[3]).read_text()
    assert validation["num_words"] == validation["num_tokens"] == len(text.split()) + text.count("\n")
    # An untrained model's perplexity is about the vocabulary size.
    assert min(validation["perplexity"]) < len(AutoTokenizer.from_pretrained(folder)) / 2
    best = validation["lambda"][validation["perplexity"].index(min(validation["perplexity"]))]
    assert result.best_lambda == best
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert len(model.ngram_heads) == 3
    if recipe == "free":
        assert metrics["ensemble_weights"] == model.config.ensemble_weights == [*result.ensemble] == result.fit.weights
        assert metrics["ensemble_lambda"] is None and model.config.ensemble_lambda == 0
        chosen = {split: metrics["splits"][split]["ensembles"]["fitted"]["perplexity"] for split in metrics["splits"]}
        assert chosen["validation"] < min(validation["perplexity"])
        assert metrics["settings"]["metric_for_best_model"] == "fitted_perplexity"
    else:
        assert metrics["ensemble_lambda"] == best == result.ensemble == model.config.ensemble_lambda
        assert metrics["ensemble_weights"] is metrics["fit"] is model.config.ensemble_weights is None
        index = validation["lambda"].index(best)
        chosen = {split: metrics["splits"][split]["perplexity"][index] for split in metrics["splits"]}
    assert chosen.keys() == {"validation", "test"}
    for split, perplexity in chosen.items():
        assert re.search(rf"wdr N=4 +{split} .* {perplexity:.2f}\*", printed)
        assert f"{perplexity:.2f} ★" in (folder / "README.md").read_text()
    assert "step     20  validation perplexity" in printed and "heads" in printed
    logged = [entry for entry in metrics["history"] if "head_3_loss" in entry]
    assert len(logged) == 40 and logged[-1]["next_word_loss"] < logged[0]["next_word_loss"]
    assert logged[-1]["head_3_loss"] < logged[0]["head_3_loss"]
    both = logged[0]["next_word_loss"] + sum(logged[0][f"head_{n}_loss"] for n in (1, 2, 3)) / 3
    expected = both if recipe == "free" else both / 2
    # Deeper heads have fewer targets, but all sums are divided by the same count.
    assert 0.8 * expected < logged[0]["loss"] <= expected
    assert "head_1_loss" in tensorboard_tags(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_table_of_a_fitted_run(finished_clm):
    """The last table has the model without heads, temperature alone, the best λ and fitted weights."""
    result, printed = finished_clm.result, finished_clm.printed
    table = printed.split("Perplexity by word, with and without the heads (* chosen on validation)")[1]
    heading, *rows = table.strip().split("\n")[:3]
    assert heading.split() == ["model", "split", "words", "without", "heads", "temperature", "best", "λ", "fitted"]
    for split, row in zip(("validation", "test"), rows, strict=True):
        scores = result.scores[split]
        plain, temperature, best, fitted = (
            scores.perplexity(value, "word")
            for value in (0.0, result.fit.temperature, result.best_lambda, result.ensemble)
        )
        cells = [f"{plain:.2f}", f"{temperature:.2f}", f"{best:.2f}", f"({result.best_lambda:g})", f"{fitted:.2f}*"]
        assert row.split()[-5:] == cells and row.split()[:3] == ["wdr", "N=4", split]
        below = f"{split}: perplexity {1 - fitted / plain:.1%} below the model without heads, "
        assert f"wdr N=4, {below}{1 - fitted / temperature:.1%} below temperature alone" in table
    assert "fitted weights " + " ".join(f"{weight:.2f}" for weight in result.fit.weights) in table


def test_free_heads_leave_the_model_as_it_is(files, tmp_path):
    """After 200 steps with dropout and clipping, the trunk equals that of a plain run, bit for bit."""
    options = as_arguments(
        max_steps=200, eval_steps=100, load_best_model_at_end="false", lambda_grid=0, sample_tokens=0
    )
    options += ["--max_grad_norm", "0.2", "--weight_decay", "0.1", "--label_smoothing", "0.1"]
    options += ["--config_overrides", "n_layer=1", "n_embd=32", "resid_pdrop=0.1", "attn_pdrop=0.1", "embd_pdrop=0.1"]
    free, plain = tmp_path / "free", tmp_path / "plain"
    (with_heads,) = run(*files, *QUICK, *options, "--output_dir", str(free))
    (without,) = run(*files, *QUICK, *options, "--output_dir", str(plain), "--ngram_target", "none")
    heads, trunk = load_file(free / "model.safetensors"), load_file(plain / "model.safetensors")
    assert trunk.keys() == {name for name in heads if not name.startswith("ngram_heads.")}
    assert len(heads) > len(trunk) and all(torch.equal(weight, heads[name]) for name, weight in trunk.items())
    for split in ("validation", "test"):
        assert with_heads.scores[split].nll(0.0) == without.scores[split].nll(0.0)


def tensorboard_tags(folder: Path) -> str:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.rglob("events.out.tfevents*")
    return " ".join(EventAccumulator(str(events)).Reload().Tags()["scalars"])


def test_model_card_code_generates(finished_clm, tmp_path):
    """The code works where the package is not installed."""
    code = card_code(finished_clm.folder) + "\nprint(type(model).__name__)"
    text, model_class = run_without_package(code, tmp_path)
    prompt = finished_clm.result.prompt
    assert text.startswith(prompt) and len(text.split()) == 16 and len(prompt.split()) == 8
    assert model_class == "WDRNgramGPT2LMHeadModel"


def test_text_continues_after_the_end_of_a_line(finished_clm):
    """In a word tokenizer, <eos> is the end of a line, which does not end a generation."""
    tokenizer = AutoTokenizer.from_pretrained(finished_clm.folder)
    model = AutoModelForCausalLM.from_pretrained(finished_clm.folder)
    end = tokenizer.convert_tokens_to_ids("<eos>")
    assert (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id) == (None,) * 3
    assert model.config.bos_token_id == model.generation_config.pad_token_id == end
    # With a saved length, `generate(max_new_tokens=...)` would warn about two lengths.
    assert model.generation_config.max_length is None
    # A prompt of 8 tokens, and 8 new ones.
    assert {len(text.split()) for text in finished_clm.result.samples.values()} == {16}
    with torch.no_grad():
        # Make every next token <eos>.
        model.transformer.ln_f.bias.copy_(1e3 * model.lm_head.weight[end])
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    (generated,) = generate("the cat sees", return_tensors=True, max_new_tokens=13)
    assert generated["generated_token_ids"][3:] == [end] * 13
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 16


def test_repeated_command_does_not_train(finished_clm, tmp_path, capsys):
    shutil.copytree(finished_clm.folder, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    (again,) = run(*finished_clm.command, "--output_dir", str(tmp_path / "run"))
    assert again.scores == finished_clm.result.scores
    assert "step " not in capsys.readouterr().out
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == weights


def test_another_ensemble_of_a_trained_model(finished_clm, tmp_path, capsys):
    """By default, it would have selected the checkpoint by another metric."""
    shutil.copytree(finished_clm.folder, tmp_path / "run")
    before = (tmp_path / "run" / "run.yaml").read_text()
    (again,) = run(*finished_clm.command, "--output_dir", str(tmp_path / "run"), "--ensemble", "lambda")
    assert "step " not in capsys.readouterr().out
    assert again.ensemble == again.best_lambda != finished_clm.result.ensemble
    assert (tmp_path / "run" / "run.yaml").read_text() == before
    assert metrics_of(tmp_path / "run")["settings"] == yaml.safe_load(before)


@pytest.mark.plots
def test_compare(finished_clm, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished_clm.folder, folder)
    weights = (folder / "model.safetensors").read_bytes()
    results = run(*finished_clm.command, "--output_dir", str(folder), "--compare")
    assert [result.name for result in results] == ["wdr N=4", "plain", "simple N=4"]
    assert (folder / "model.safetensors").read_bytes() == weights
    assert (folder / "comparison.png").exists() and (folder / "comparison_training.png").exists()
    assert not WDRNgramGPT2LMHeadModel.from_pretrained(folder / "plain").ngram_heads
    assert WDRNgramGPT2LMHeadModel.from_pretrained(folder / "simple").config.ngram_target == "simple"
    table = capsys.readouterr().out.split("Perplexity by word")[1]
    assert re.search(r"plain +test", table) and re.search(r"simple N=4 +validation", table)
    # Without heads, λ changes nothing and is not shown.
    (plain,) = re.findall(r"plain +validation +[\d,]+ (.*)", table)
    assert len(plain.split()) == 1


@pytest.mark.parametrize("schedule", ["linear", "curriculum"])
def test_loss_schedule_of_the_heads(files, tmp_path, capsys, schedule):
    """The log has the loss with the scheduled weights. A longer training has another schedule, which is said."""
    command = [*files, *QUICK, "--output_dir", str(tmp_path / "run"), "--head_loss_schedule", schedule]
    command += ["--lr_scheduler_type", "constant", "--lambda_grid", "0", "--head_sample_rate", "1"]
    (result,) = run(*command)
    steps = [entry for entry in result.history if "head_1_loss" in entry or "next_word_loss" in entry]
    extra = [entry["loss"] - entry["next_word_loss"] for entry in steps]
    assert len(steps) == 4
    if schedule == "linear":
        weighted = [sum(entry[f"head_{n}_loss"] for n in (1, 2, 3)) / 3 for entry in steps]
        shares = [one / other for one, other in zip(extra, weighted, strict=True)]
        # Heads have a few targets less than the next token.
        assert shares == pytest.approx([1.0, 0.75, 0.5, 0.25], rel=0.2)
    else:
        assert extra[0] == pytest.approx(0, abs=1e-5)
        assert [later > before + 0.5 for before, later in itertools.pairwise(extra)] == [True] * 3
    run(*command, "--max_steps", "6")
    assert "The schedule depends on `--max_steps`" in capsys.readouterr().out


def test_compare_with_a_plain_model(files, tmp_path, capsys):
    command = [*files, *QUICK, "--sample_tokens", "0", "--compare", "--ngram_size", "1", "--output_dir"]
    results = run(*command, str(tmp_path / "run"))
    assert [result.name for result in results] == ["plain", "simple N=4", "wdr N=4"]
    # The folder may be moved, and written in another way.
    (tmp_path / "run").rename(tmp_path / "moved")
    capsys.readouterr()
    again = run(*command, f"{tmp_path}/moved/")
    assert [result.scores for result in again] == [result.scores for result in results]
    assert "step " not in capsys.readouterr().out


@pytest.mark.parametrize("train_mode", ["heads", "lora"])
def test_trained_weights(checkpoint, files, tmp_path, train_mode):
    folder = tmp_path / "run"
    run("--model_name_or_path", checkpoint, "--train_mode", train_mode, *files, "--output_dir", str(folder), *QUICK)
    before, after = GPT2LMHeadModel.from_pretrained(checkpoint), WDRNgramGPT2LMHeadModel.from_pretrained(folder)
    moved = {
        name
        for name, value in before.named_parameters()
        if not torch.allclose(value, after.get_parameter(name), atol=1e-7)
    }
    if train_mode == "heads":
        assert not moved
    else:
        assert moved and all(name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")) for name in moved)
        assert (folder / "adapter" / "adapter_model.safetensors").exists()
    # Biases start at zero.
    assert all(head.fc_out.bias.any() for head in after.ngram_heads)
    # With a frozen backbone, the best checkpoint is chosen by the heads' loss.
    state = json.loads((folder / "trainer_state.json").read_text())
    losses = {entry["step"]: entry["eval_heads_loss"] for entry in state["log_history"] if "eval_loss" in entry}
    if train_mode == "heads":
        assert state["best_global_step"] == min(losses, key=losses.get) == 4


def test_settings_from_a_file(texts, tmp_path):
    path = tmp_path / "settings.yaml"
    options = {"preset": "paper-tf-small", "train_file": [texts["train"]], "ngram_size": 3, "learning_rate": "1e-3"}
    path.write_text(yaml.safe_dump(options))
    arguments = parse_clm_arguments([str(path), "--ngram_size", "2"], "")
    # Precedence: command line, file, preset.
    assert arguments.model.ngram_size == 2
    assert arguments.training.learning_rate == 1e-3
    assert (arguments.training.per_device_train_batch_size, arguments.data.block_size) == (32, 128)
    assert arguments.training.lr_scheduler_type == "constant" and arguments.report.patience == 50
    assert arguments.data.train_file == [texts["train"]]
    # A single value becomes a list.
    path.write_text(f"train_file: {texts['train']}\nlambda_grid: 0.4\neval_strategy: steps\nlogging_steps: 30\n")
    arguments = parse_clm_arguments([str(path)], "")
    assert arguments.data.train_file == [texts["train"]] and arguments.report.lambda_grid == [0.4]
    # Checkpoints are saved at evaluations.
    assert arguments.training.eval_steps == arguments.training.save_steps == 30


def test_run_yaml_repeats_the_run(files, tmp_path):
    # With this learning rate, the best checkpoint is not the last.
    run(*files, "--output_dir", str(tmp_path / "one"), *QUICK, "--learning_rate", "0.3", "--max_steps", "6")
    run(str(tmp_path / "one" / "run.yaml"), "--output_dir", str(tmp_path / "two"), "--sample_tokens", "8")
    assert (tmp_path / "two" / "run.yaml").read_text() == (tmp_path / "one" / "run.yaml").read_text()
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == (
        tmp_path / "one" / "model.safetensors"
    ).read_bytes()


def test_tokenizer_without_a_run_is_replaced(files, tmp_path):
    """A run that ended before its settings were written leaves one, perhaps with other options."""
    folder = tmp_path / "run"
    train_word_tokenizer(["the cat sees a dog\n"]).save_pretrained(folder)
    run(*files, *QUICK, "--max_steps", "1", "--vocab_size", "12", "--output_dir", str(folder))
    assert len(AutoTokenizer.from_pretrained(folder)) == 12


def test_streaming(files, texts, tmp_path):
    """Streamed text is read in order."""
    options = [*QUICK, "--streaming", "--ngram_target", "simple", "--max_steps", "3", "--eval_steps", "3"]
    (result,) = run(*files, "--output_dir", str(tmp_path / "run"), *options)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = tokenizer(Path(texts["train"]).read_text(), return_tensors="pt").input_ids[0]
    torch.manual_seed(42)
    model = WDRNgramGPT2LMHeadModel(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "run").config).train()
    # Three batches of four blocks of 16; the first loss is that of the untrained model.
    with torch.no_grad():
        expected = model(ids[:64].view(4, 16), labels=ids[:64].view(4, 16)).loss.item()
    first = next(entry for entry in result.history if "loss" in entry)
    assert result.name == "simple N=4" and first["loss"] == pytest.approx(expected, rel=1e-4)


def test_default_data(tmp_path, monkeypatch, capsys):
    """Only options that shorten the run are given."""
    monkeypatch.chdir(tmp_path)
    short = ["--max_steps", "2", "--lambda_grid", "0", "0.4", "--eval_strategy", "no", "--disable_tqdm", "true"]
    (result,) = run(*short, "--config_overrides", "n_layer=1", "n_embd=32")
    assert result.name == "wdr N=4" and result.settings["preset"] == "tiny"
    assert set(result.scores) == {"validation", "test"}
    assert 20_000 < result.scores["validation"].num_words < result.scores["validation"].num_tokens
    printed = capsys.readouterr().out
    assert "Perplexity by word" in printed and "Perplexity by token" in printed
    assert "--- wdr N=4, λ=0\n" in printed and "--- wdr N=4, weights " in printed
    assert (tmp_path / "runs" / "clm" / "model.safetensors").exists()


def test_early_stopping_keeps_the_best(files, tmp_path):
    """With a destructive learning rate, the first evaluation is the best."""
    folder = tmp_path / "run"
    options = ["--learning_rate", "0.3", "--lr_scheduler_type", "constant", "--patience", "2", "--max_steps", "40"]
    run(*files, "--output_dir", str(folder), *QUICK, *options)
    history = metrics_of(folder)["history"]
    evaluations = [entry["eval_fitted_perplexity"] for entry in history if "eval_loss" in entry]
    best = evaluations.index(min(evaluations))
    assert len(evaluations) == best + 3 < 20
    # The validation text is short enough that the weights were fitted to all of it.
    kept = metrics_of(folder)["splits"]["validation"]["ensembles"]["fitted"]["perplexity"]
    assert kept == pytest.approx(min(evaluations), rel=1e-4)


@pytest.mark.parametrize("train_mode", ["full", "lora"])
def test_interrupted_before_the_model_was_saved(checkpoint, files, tmp_path, train_mode):
    """All steps were taken, the last one within an epoch: resuming takes none."""
    folder = tmp_path / "run"
    options = ["--model_name_or_path", checkpoint, "--train_mode", train_mode, *files, *QUICK]
    (first,) = run(*options, "--output_dir", str(folder))
    before = contents(folder)
    for name in ("trainer_state.json", "model.safetensors", "config.json", "metrics.json"):
        (folder / name).unlink()
    # The file that marks the training as complete is truncated.
    (folder / "trainer_state.json").write_text('{"epoch": 1')
    (again,) = run(*options, "--output_dir", str(folder))
    assert contents(folder).keys() == before.keys()
    assert (folder / "model.safetensors").read_bytes() == before[folder / "model.safetensors"]
    assert again.scores == first.scores


@pytest.mark.parametrize("last_step", [6, None])
def test_resuming_keeps_the_early_stopping_counter(files, tmp_path, last_step):
    """Interrupted before early stopping, or after it and before the model was saved."""
    options = ["--learning_rate", "0.3", "--lr_scheduler_type", "constant", "--patience", "3", "--max_steps", "40"]
    command = [*files, *QUICK, *options, "--save_total_limit", "100"]
    complete, broken = tmp_path / "complete", tmp_path / "broken"
    run(*command, "--output_dir", str(complete))
    shutil.copytree(complete, broken)
    for name in ("trainer_state.json", "model.safetensors", "config.json", "metrics.json"):
        (broken / name).unlink()
    steps = sorted(int(path.name.split("-")[1]) for path in broken.glob("checkpoint-*"))
    assert steps[-1] < 40 and steps[-1] > 6
    for step in steps:
        if last_step is not None and step > last_step:
            shutil.rmtree(broken / f"checkpoint-{step}")
    run(*command, "--output_dir", str(broken))
    assert (broken / "model.safetensors").read_bytes() == (complete / "model.safetensors").read_bytes()
    evaluations = [
        [(entry["step"], entry["eval_loss"]) for entry in RunFolder(str(folder)).history() if "eval_loss" in entry]
        for folder in (complete, broken)
    ]
    assert evaluations[0] == evaluations[1]


@pytest.mark.parametrize("train_mode", ["full", "lora"])
def test_killed_and_resumed(checkpoint, files, tmp_path, train_mode):
    """The final weights are those of an uninterrupted run."""
    options = ["--model_name_or_path", checkpoint, "--train_mode", train_mode, *files, *QUICK]
    options += as_arguments(max_steps=40, eval_steps=10, learning_rate=1e-2)
    run(*options, "--output_dir", str(tmp_path / "complete"))
    broken = tmp_path / "broken"
    run_and_kill(run, broken, options)
    run(*options, "--output_dir", str(broken))
    history = metrics_of(broken)["history"]
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [10, 20, 30, 40]
    weights = [
        WDRNgramGPT2LMHeadModel.from_pretrained(folder).state_dict() for folder in (tmp_path / "complete", broken)
    ]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
