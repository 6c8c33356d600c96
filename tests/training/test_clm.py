"""`ngram-wdr clm`, from its arguments to what it leaves."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.method.ensemble import ensemble_arguments
from ngram_wdr_hf.training import text_data
from ngram_wdr_hf.training.new_models import make_model
from ngram_wdr_hf.training.presets import CLM_PRESETS
from ngram_wdr_hf.training.results import USUAL_GRID, EnsembleSearch
from tests.support import scripts
from tests.support.processes import run_without_package
from tests.support.scripts import EVALUATE, as_arguments, contents, metrics_of

QUICK = scripts.QUICK["clm"]
run, parsed = partial(scripts.run, "clm"), partial(scripts.parsed, "clm")


@torch.no_grad()
def slow_perplexity(model, ids: torch.Tensor, size: int, ensemble) -> float:
    """Predict every token but the first, one at a time, in windows of `size` tokens, the last one moved to the end."""
    nlls = []
    for i in range(1, len(ids)):
        end = min(-(-i // size) * size, len(ids) - 1)
        logits = model(ids[None, end - size : end], **ensemble_arguments(ensemble)).logits[0, i - 1 - end]
        nlls.append(torch.nn.functional.cross_entropy(logits, ids[i]))
    return torch.stack(nlls).mean().exp().item()


@pytest.mark.parametrize("recipe", ["free", pytest.param("paper", marks=pytest.mark.plots)])
def test_run_and_its_files(recipe, finished, commands, texts, tmp_path):
    """All figures are those of the saved model, and the same in every file."""
    if recipe == "free":
        _, folder, result, printed = finished("clm")
    else:
        more = [*scripts.LONGER["clm"], "--recipe", recipe]
        _, folder, result, printed = scripts.finish("clm", tmp_path, *commands["clm"], *more)
    card, metrics = (folder / "README.md").read_text(), metrics_of(folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    own = model.ngram_ensemble()
    chosen = (None, [*own]) if recipe == "free" else (own, None)
    assert own == result.ensemble and (metrics["ensemble_lambda"], metrics["ensemble_weights"]) == chosen
    assert (result.fit is None) == (metrics["fit"] is None) == (recipe == "paper")
    for split in ("validation", "test"):
        text, figures = Path(texts[split]).read_text(), metrics["splits"][split]
        assert figures["num_words"] == figures["num_tokens"] == len(text.split()) + text.count("\n")
        ids = torch.tensor([model.config.bos_token_id, *tokenizer(text).input_ids])
        by_lambda = dict(zip(figures["lambda"], figures["perplexity"], strict=True))
        for value in (0.0, 0.5):
            assert by_lambda[value] == pytest.approx(slow_perplexity(model, ids, 14, value), rel=1e-4)
        chosen = slow_perplexity(model, ids, 14, own)
        if recipe == "free":
            named = {name: each["perplexity"] for name, each in figures["ensembles"].items()}
            assert named["fitted"] == pytest.approx(chosen, rel=1e-4)
            assert named["temperature"] == pytest.approx(slow_perplexity(model, ids, 14, result.fit.temperature), 1e-4)
        if split == "validation":
            assert by_lambda.keys() == {*USUAL_GRID} and chosen <= min(by_lambda.values()) * (1 + 1e-4)
            assert chosen < len(tokenizer) / 2
        cell = f"{chosen:.2f}" if recipe == "free" else f"{chosen:.2f} ({own:g})"
        assert re.search(rf"wdr N=4 +{split} .* {re.escape(cell)}\*\n", printed) and rf"{cell}\*" in card
    logged = [entry for entry in metrics["history"] if "head_3_loss" in entry]
    assert len(logged) == 40 and all(logged[-1][name] < logged[0][name] for name in ("next_word_loss", "head_3_loss"))
    plots = ("lambda_sweep.png", "training.png") if recipe == "paper" else ()
    assert all((folder / name).stat().st_size > 0 for name in ("run.yaml", "tokenizer.json", *plots))


def test_card_and_saved_generation(finished, tmp_path):
    """The card's code works without the package. `<eos>` is the end of a line, which does not end a generation."""
    _, folder, result, _ = finished("clm")
    code = scripts.card_code(folder) + "\nprint(type(model).__name__)"
    text, model_class = run_without_package(code, tmp_path)
    assert model_class == "WDRNgramGPT2LMHeadModel"
    # A prompt of 7 tokens, and 7 new ones.
    assert all(sample.split()[:7] == text.split()[:7] for sample in result.samples.values())
    assert [len(each.split()) for each in (text, *result.samples.values())] == [14] * 3
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id) == (None,) * 3
    end = tokenizer.convert_tokens_to_ids("<eos>")
    assert model.config.bos_token_id == model.generation_config.pad_token_id == end
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 14


def test_free_heads_leave_the_model_as_it_is(files, tmp_path):
    """After 60 steps with dropout and clipping, the trunk equals that of a plain run, bit for bit."""
    options = as_arguments(max_steps=60, eval_steps=60, lambda_grid=0, max_grad_norm=0.2, weight_decay=0.1)
    options += ["--load_best_model_at_end", "false", "--label_smoothing", "0.1", "--config_overrides", "n_layer=1"]
    options += ["resid_pdrop=0.1", "attn_pdrop=0.1", "embd_pdrop=0.1", "--output_dir"]
    run(*files, *QUICK, *options, str(tmp_path / "free"))
    run(*files, *QUICK, *options, str(tmp_path / "plain"), "--ngram_target", "none")
    free, plain = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("free", "plain"))
    heads, trunk = free.state_dict(), plain.state_dict()
    assert plain.config.ngram_size == 1 and free.config.n_layer == 1
    assert trunk.keys() == {name for name in heads if not name.startswith("ngram_heads.")}
    assert len(heads) > len(trunk) and all(torch.equal(weight, heads[name]) for name, weight in trunk.items())
    for split, figures in metrics_of(tmp_path / "plain")["splits"].items():
        assert figures["perplexity"][0] == metrics_of(tmp_path / "free")["splits"][split]["perplexity"][0]


def test_default_data_and_bpe(texts, tmp_path, monkeypatch):
    """Only options that shorten the run are given, and the text is another."""
    monkeypatch.chdir(tmp_path)
    rows = Dataset.from_dict({"text": Path(texts["train"]).read_text().splitlines()})
    monkeypatch.setattr(text_data, "python_english", lambda: dict.fromkeys(("train", "validation", "test"), rows))
    short = as_arguments(max_steps=2, lambda_grid="0 0.4", eval_strategy="no", disable_tqdm="true")
    result = run(*short, "--config_overrides", "n_layer=1", "n_embd=32", "n_head=2")
    assert result.name == "wdr N=4" and result.settings["preset"] == "tiny" and len(result.samples) == 2
    assert result.splits.keys() == {"validation", "test"}
    folder = tmp_path / "runs" / "clm"
    assert (folder / "model.safetensors").exists() and AutoTokenizer.from_pretrained(folder).unk_token is None


def test_streamed_dataset(texts, tmp_path):
    """A column of a dataset."""
    for split, path in texts.items():
        rows = Dataset.from_dict({"body": Path(path).read_text().splitlines(keepends=True)})
        rows.to_json(tmp_path / f"{split}.jsonl")
    options = as_arguments(dataset_name=tmp_path, text_column="body", streaming=True, output_dir=tmp_path / "run")
    result = run(*QUICK, *options, "--tokenizer", "word", "--vocab_size", "12")
    assert {name: each["num_words"] for name, each in result.splits.items()} == {"validation": 320, "test": 240}


# As many as in Penn Treebank.
TEN_THOUSAND_WORDS = train_word_tokenizer([" ".join(f"w{i}" for i in range(9_998))])


def new_model(*arguments: str):
    options, model, _ = parsed(*arguments)
    with torch.device("meta"):
        return make_model(model, "causal", TEN_THOUSAND_WORDS, options.block_size)


PAPER = {
    # N, λ of simple heads, λ of WDR heads, tokens in a batch, layers
    "paper-tt-ptb": (2, 0.2, 0.4, 3840, 3),
    "paper-tt-wikitext2": (4, 0.2, 0.3, 3840, 3),
    "paper-tt-text8": (3, 0.2, 0.1, 4800, 6),
    "paper-tt-wikitext103": (2, 0.1, 0.1, 4800, 6),
    "paper-rf-ptb": (4, 0.2, 0.1, 16_384, 6),
    "paper-rf-wikitext2": (2, 0.2, 0.3, 8192, 6),
    "paper-rf-text8": (3, 0.1, 0.1, 512, 6),
    "paper-rf-wikitext103": (4, 0.1, 0.1, 512, 6),
}


@pytest.mark.parametrize("preset", PAPER)
def test_the_papers_settings(preset):
    size, simple, wdr, tokens, layers = PAPER[preset]
    options, _, training = parsed("--preset", preset)
    model = new_model("--preset", preset)
    config, batch = model.config, training.per_device_train_batch_size * training.gradient_accumulation_steps
    assert batch * options.block_size == tokens and config.max_position_embeddings == options.block_size
    assert training.learning_rate == (2.5e-3 if "-tt-" in preset else 1e-4)
    assert (config.ngram_size, len(model.ngram_heads), config.num_hidden_layers) == (size, size - 1, layers)
    assert (config.head_gradient, config.head_loss_weight, config.ngram_head_reads) == (1.0, None, "hidden")
    # The paper's heads of 0.1M or 0.5M parameters.
    width = model.get_output_embeddings().weight.shape[1]
    assert sum(p.numel() for p in model.ngram_heads[0].parameters()) == 2 * width**2 + 2 * width
    for kind, value in {"wdr": wdr, "simple": simple}.items():
        assert EnsembleSearch.of(*parsed("--preset", preset, "--ngram_target", kind)).grid == [0.0, value]


def test_options_override_a_preset():
    preset = ["--preset", "paper-tt-ptb"]
    plain = new_model(*preset, "--ngram_target", "none")
    # The paper's table: 6.7M.
    assert not plain.ngram_heads and 6.65e6 < sum(p.numel() for p in plain.parameters()) < 6.75e6
    assert new_model(*preset, "--ngram_size", "5").config.ngram_size == 5
    assert EnsembleSearch.of(*parsed(*preset, "--lambda_grid", "0.3", "0", "0.15")).grid == [0, 0.15, 0.3]


def test_recipes_and_default_grids():
    for preset in CLM_PRESETS.keys() - PAPER.keys():
        assert EnsembleSearch.of(*parsed("--preset", preset)).grid == [*USUAL_GRID], preset
    names = ("head_gradient", "head_loss_weight", "head_sample_rate", "head_loss_tokens", "ngram_head_expansion")
    expected = {"free": (0.0, 1.0, 1 / 3, "all", 1), "paper": (1, None, 1, "all", 1), "drafts": (0, 1, 1, "draft", 3)}
    for recipe, values in expected.items():
        config, search = new_model("--recipe", recipe).config, EnsembleSearch.of(*parsed("--recipe", recipe))
        assert tuple(getattr(config, name) for name in names) == values
        assert config.ngram_head_reads == ("hidden" if recipe == "paper" else "hidden+tokens")
        assert search.fits == (recipe == "free") and (search.grid == [0.0]) == (recipe == "drafts")
    # The command line comes last.
    config = new_model("--config_overrides", "head_gradient=0.5", "n_layer=3", "--head_sample_rate", "0.2").config
    assert (config.head_gradient, config.n_layer, config.head_sample_rate) == (0.5, 3, 0.2)


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        # Half a chunk and one and a half chunks of Reformer's attention.
        ("tiny-tt", "--block_size 7 --ngram_target simple --ngram_size 2"),
        ("tiny-rf", "--block_size 47 --ngram_size 3 --gradient_accumulation_steps 2"),
    ],
)
def test_the_papers_backbones(preset, options, files, tmp_path):
    """They learn, and are evaluated again with the same figures."""
    command = [*files, *QUICK, "--preset", preset, "--recipe", "paper", "--learning_rate", "0.01", *options.split()]
    result = run(*command, "--lambda_grid", "0", "0.4", "--output_dir", tmp_path)
    assert all(head.fc_out.bias.any() for head in AutoModelForCausalLM.from_pretrained(tmp_path).ngram_heads)
    losses = [entry["next_word_loss"] for entry in result.history if "loss" in entry]
    assert len(losses) == 4 and losses[-1] < losses[0] and len(result.samples) == 2
    again = run(*EVALUATE, tmp_path, "--lambda_grid", "0", "0.4")
    assert again.splits["test"]["perplexity"] == pytest.approx(result.splits["test"]["perplexity"], rel=1e-5)


def test_evaluation_of_a_run(checkpoint, texts, tmp_path):
    """It takes the held-out text, block size and stride from `run.yaml`, also for one of the run's checkpoints."""
    folder = tmp_path / "run"
    command = ["--model_name_or_path", checkpoint, "--train_file", texts["train"], "--test_file", texts["test"]]
    options = as_arguments(block_size=8, stride=4, max_steps=1, eval_steps=1, validation_percentage=7)
    trained = run(*command, *QUICK, *options, "--output_dir", folder)
    again = run(*EVALUATE, folder / "checkpoint-1", "--output_dir", tmp_path / "new")
    for split, figures in trained.splits.items():
        assert again.splits[split]["perplexity"] == pytest.approx(figures["perplexity"], rel=1e-5)
    held_out = Path(texts["train"]).read_text().splitlines()[-21:]
    assert trained.splits["validation"]["num_words"] == sum(len(line.split()) + 1 for line in held_out)
    # Another text has the block size and stride, too, but not the λ. The tables are saved beside the model.
    other, before = [*EVALUATE, folder, "--test_file", texts["test"]], contents(folder)
    again, wide = run(*other), run(*other, "--stride", "1", "--lambda_grid", "0", "0.3")
    expected = pytest.approx(trained.splits["test"]["perplexity"][0], rel=1e-5)
    assert again.splits.keys() == {"test"} and again.splits["test"]["perplexity"][0] == expected
    assert wide.splits["test"]["lambda"] == [0.0, 0.3] and wide.splits["test"]["perplexity"][0] != expected
    assert contents(folder).keys() - before.keys() == {folder / "evaluation.md", folder / "evaluation.json"}


def test_drafts(files, texts, tmp_path):
    """The most frequent tokens are drafted. Samples say how well; an evaluation gives the same."""
    result = run(*files, "--output_dir", tmp_path, *QUICK, "--use_mtp", "--draft_vocab_size", "9")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    counts = Counter(tokenizer(Path(texts["train"]).read_text()).input_ids)
    drafted = [counts[token] for token in model.draft_token_ids.tolist()]
    assert sorted(drafted) == sorted(count for _, count in counts.most_common(9))
    assert all(float(re.search(r", ([\d.]+) tokens per forward pass", label)[1]) >= 1 for label in result.samples)
    assert run(*EVALUATE, tmp_path, "--sample_tokens", "8", "--use_mtp").samples == result.samples
