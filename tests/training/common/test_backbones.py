"""The training scripts with other models than GPT-2 and Marian: the paper's other two, and any checkpoint."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from ngram_wdr_hf import WDRNgramReformerModelWithLMHead, WDRNgramTensorizedTransformerLMHeadModel, with_ngram_heads
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.evaluation.scores import Scores
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.model import build_clm_model
from ngram_wdr_hf.training.clm.presets import CLM_PRESETS
from ngram_wdr_hf.training.common.arguments import USUAL_GRID
from tests.support import nmt_runs
from tests.support.clm_runs import QUICK, SCRIPT, run
from tests.support.errors import assert_names, raises_naming
from tests.support.scripts import failing, metrics_of
from tests.support.tiny import plain_seq2seq

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
TINY = {
    "tiny-tt": WDRNgramTensorizedTransformerLMHeadModel,
    "tiny-rf": WDRNgramReformerModelWithLMHead,
}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
LLAMA["num_key_value_heads"] = 2
PLAIN = {
    "LlamaForCausalLM": {**LLAMA, "max_position_embeddings": 24},
    "Olmo2ForCausalLM": {**LLAMA, "max_position_embeddings": 24},
    # It has no `max_position_embeddings`.
    "BloomForCausalLM": {"hidden_size": 16, "n_layer": 1, "n_head": 2},
    "MixtralForCausalLM": {**LLAMA, "num_local_experts": 2},
}
SEQ2SEQ = {**nmt_runs.SIZES, "decoder_ffn_dim": 32, "encoder_ffn_dim": 32, "max_position_embeddings": 64}
SEQ2SEQ |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1}


class Words:
    """The part of a tokenizer that a new model needs."""

    eos_token_id = bos_token_id = 1
    unk_token_id = 0

    def __init__(self, size: int):
        self.size = size

    def __len__(self):
        return self.size


def assert_same_scores(again: Scores, expected: Scores) -> None:
    """Check the scores of a second evaluation, which has the chosen ensemble and not the others with weights."""
    assert again.lambdas == expected.lambdas and len(again.ensembles) < len(expected.ensembles)
    for ensemble in again.ensembles:
        assert again.nll(ensemble) == pytest.approx(expected.nll(ensemble), rel=1e-5)


def new_model(preset: str, *options: str, vocab_size: int = 10_000):
    arguments = parse_clm_arguments(["--preset", preset, *options], "")
    with torch.device("meta"):
        return build_clm_model(arguments.model, Words(vocab_size), arguments.data.block_size)


@pytest.mark.parametrize("preset", PAPER)
def test_the_papers_settings(preset):
    size, simple, wdr, tokens, layers = PAPER[preset]
    arguments = parse_clm_arguments(["--preset", preset], "")
    training = arguments.training
    assert training.per_device_train_batch_size * arguments.data.block_size == tokens
    assert training.gradient_accumulation_steps == 1
    assert training.learning_rate == (2.5e-3 if "-tt-" in preset else 1e-4)
    model = new_model(preset)
    config = model.config
    assert config.ngram_size == size and len(model.ngram_heads) == size - 1 and config.num_hidden_layers == layers
    assert config.max_position_embeddings == arguments.data.block_size
    # The paper's heads of 0.1M or 0.5M parameters.
    width = model.get_output_embeddings().weight.shape[1]
    assert sum(p.numel() for p in model.ngram_heads[0].parameters()) == 2 * width**2 + 2 * width
    for kind, value in {"wdr": wdr, "simple": simple}.items():
        arguments = parse_clm_arguments(["--preset", preset, "--ngram_target", kind], "")
        assert arguments.lambda_grid == [0.0, value]
        assert new_model(preset, "--ngram_target", kind).config.ngram_target == kind
    # Options override N and λ.
    assert new_model(preset, "--ngram_size", "5").config.ngram_size == 5
    assert not new_model(preset, "--ngram_target", "none").ngram_heads
    arguments = parse_clm_arguments(["--preset", preset, "--lambda_grid", "0.3", "0", "0.15"], "")
    assert arguments.lambda_grid == [0.0, 0.15, 0.3]


def test_parameters_of_the_papers_tt():
    """The paper's table: 6.7M with the 10,000 words of Penn Treebank; heads and all embeddings on top of none."""
    model = new_model("paper-tt-ptb", "--ngram_target", "none")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 6.65e6 < count < 6.75e6
    heads = sum(p.numel() for p in new_model("paper-tt-ptb").parameters()) - count
    assert heads == 2 * 256**2 + 2 * 256


def test_default_grid_of_other_presets():
    for preset in CLM_PRESETS.keys() - PAPER.keys():
        arguments = parse_clm_arguments(["--preset", preset], "")
        assert arguments.lambda_grid == list(USUAL_GRID), preset
    for options in (["--model_name_or_path", "somewhere"], ["--preset", "paper-tt-ptb", "--ngram_target", "none"]):
        assert parse_clm_arguments(options, "").lambda_grid == list(USUAL_GRID)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.parametrize(
    ("preset", "block_size", "options"),
    [
        ("tiny-tt", 16, ["--use_mtp"]),
        ("tiny-tt", 7, ["--ngram_target", "simple", "--ngram_size", "2"]),
        # Half a chunk and one and a half chunks of Reformer's attention.
        ("tiny-rf", 16, []),
        ("tiny-rf", 47, ["--ngram_size", "3"]),
    ],
)
def test_run_and_resumed_run(preset, block_size, options, files, tmp_path):
    command = [*files, "--preset", preset, *QUICK, "--block_size", str(block_size), "--max_steps", "4", *options]
    command += ["--lambda_grid", "0", "0.4"]
    complete, broken = tmp_path / "complete", tmp_path / "broken"
    (result,) = run(*command, "--output_dir", str(complete))
    model = AutoModelForCausalLM.from_pretrained(complete)
    assert type(model) is TINY[preset] and result.settings["preset"] == preset
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert len(losses) == 4 and losses[-1] < losses[0]
    words = len(Path(files[3]).read_text().split()) + Path(files[3]).read_text().count("\n")
    assert result.scores["validation"].num_words == words
    assert len(result.samples) == 2 and all(len(text.split()) >= 5 for text in result.samples.values())
    assert all("forward pass" in label for label in result.samples) is ("--use_mtp" in options)
    # Resuming after two steps gives the same weights.
    shutil.copytree(complete, broken)
    shutil.rmtree(broken / "checkpoint-4")
    for name in ("trainer_state.json", "model.safetensors", "config.json", "metrics.json"):
        (broken / name).unlink()
    (again,) = run(*command, "--output_dir", str(broken))
    assert [entry["step"] for entry in again.history if "loss" in entry] == [1, 2, 3, 4]
    assert [entry["loss"] for entry in again.history if "loss" in entry][:2] == losses[:2]
    expected = weights(complete)
    assert all(torch.equal(value, expected[key]) for key, value in weights(broken).items())
    # A second evaluation gives the same scores.
    (again,) = run(
        *("--do_train", "false", "--model_name_or_path", str(complete), "--sample_tokens", "0"),
        *("--block_size", str(block_size), "--lambda_grid", "0", "0.4", *files[2:]),
    )
    assert_same_scores(again.scores["test"], result.scores["test"])


@pytest.fixture(scope="module")
def plain_folders(texts, tmp_path_factory) -> dict[str, str]:
    """Plain models with a word tokenizer."""
    tokenizer = train_word_tokenizer([Path(texts["train"]).read_text(encoding="utf-8")])
    folders = {}
    for name, sizes in PLAIN.items():
        torch.manual_seed(0)
        ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None}
        model_class = getattr(transformers, name)
        folder = tmp_path_factory.mktemp(name)
        model_class(model_class.config_class(vocab_size=len(tokenizer), **sizes, **ends)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[name] = str(folder)
    return folders


@pytest.mark.parametrize("name", PLAIN)
def test_heads_on_a_plain_checkpoint(name, plain_folders, files, tmp_path, capsys):
    folder = tmp_path / "run"
    command = ["--model_name_or_path", plain_folders[name], *files, "--output_dir", str(folder), *QUICK]
    (result,) = run(*command, "--learning_rate", "0.01", "--ngram_size", "3")
    ours = AutoModelForCausalLM.from_pretrained(folder)
    assert type(ours).__name__ == f"WDRNgram{name}" and len(ours.ngram_heads) == 2
    assert result.name == "wdr N=3" and all(head.fc_out.bias.any() for head in ours.ngram_heads)
    before = getattr(transformers, name).from_pretrained(plain_folders[name])
    assert not torch.equal(before.get_output_embeddings().weight, ours.get_output_embeddings().weight)
    losses = [entry["next_word_loss"] for entry in result.history if "loss" in entry]
    assert losses[-1] < losses[0]
    # Evaluate only: the trained model, and the plain one without heads.
    (again,) = run("--do_train", "false", "--model_name_or_path", str(folder), *files[2:], "--block_size", "16")
    assert_same_scores(again.scores["test"], result.scores["test"])
    assert again.samples.keys() == {"λ=0", "λ=0.4"} or again.ensemble != 0
    plain = ["--do_train", "false", "--model_name_or_path", plain_folders[name], *files[2:], "--sample_tokens", "4"]
    (plain,) = run(*plain, "--block_size", "16")
    assert plain.name == "plain" and len(plain.scores["test"].nll_sums) == 1


@pytest.mark.parametrize(("name", "expected"), [("LlamaForCausalLM", 24), ("BloomForCausalLM", 1024)])
def test_the_block_size_of_a_checkpoint(name, expected, plain_folders, files, tmp_path, monkeypatch):
    """The checkpoint's maximum, or a default if there is no limit."""
    seen = []
    model_class = type(with_ngram_heads(plain_folders[name]))
    forward = model_class.forward

    def watched(self, input_ids, **kwargs):
        seen.append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **kwargs)

    watched.__signature__ = forward.__signature__
    monkeypatch.setattr(model_class, "forward", watched)
    options = [argument for argument in QUICK if argument != "--block_size"]
    options.remove("16")
    command = ["--model_name_or_path", plain_folders[name], *files, "--output_dir", str(tmp_path), "--max_steps", "1"]
    run(*command, *options, "--max_steps", "1", "--per_device_train_batch_size", "1", "--train_mode", "heads")
    assert max(seen) == expected


@pytest.mark.parametrize(("name", "train_mode"), [("Olmo2ForCausalLM", "lora"), ("BloomForCausalLM", "heads")])
def test_trained_weights(name, train_mode, plain_folders, files, tmp_path):
    folder = tmp_path / "run"
    command = ["--model_name_or_path", plain_folders[name], "--train_mode", train_mode, *files, *QUICK]
    run(*command, "--output_dir", str(folder), "--learning_rate", "0.01", "--sample_tokens", "0")
    before = getattr(transformers, name).from_pretrained(plain_folders[name])
    after = AutoModelForCausalLM.from_pretrained(folder)
    moved = {key for key, value in before.named_parameters() if not torch.equal(value, after.get_parameter(key))}
    assert bool(moved) is (train_mode == "lora") and not any("embed" in key or "lm_head" in key for key in moved)
    assert all(head.fc_out.bias.any() for head in after.ngram_heads)


@pytest.mark.parametrize("name", ["MBartForConditionalGeneration", "PegasusForConditionalGeneration"])
def test_translation_with_another_model(name, plain_checkpoints, pairs, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(plain_checkpoints["bart"])
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "forced_eos_token_id": None}
    model = model_class(model_class.config_class(vocab_size=len(tokenizer), **SEQ2SEQ, **heads))
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    folder = tmp_path / "run"
    command = ["--model_name_or_path", str(tmp_path / "plain"), *pairs, "--output_dir", str(folder)]
    (result,) = nmt_runs.run(*command, *nmt_runs.QUICK, "--ngram_size", "3", "--learning_rate", "0.01")
    ours = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(ours).__name__ == f"WDRNgram{name}" and len(ours.ngram_heads) == 2
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert metrics_of(folder)["splits"].keys() == {"validation", "test"}
    (again,) = nmt_runs.run("--do_train", "false", "--model_name_or_path", str(folder), "--num_beams", "2")
    assert len(again.scores) == 2


@pytest.fixture
def fails(capsys, monkeypatch, tmp_path):
    """Run a script as from the shell, and return its error message."""
    return lambda script, *arguments: failing(script, tmp_path, monkeypatch, capsys)(*arguments)


def test_models_for_the_other_script(fails, plain_folders, plain_checkpoints, files, pairs, tmp_path):
    for name in ("Olmo2ForCausalLM", "BloomForCausalLM"):
        shutil.copytree(plain_folders[name], tmp_path / name)
        AutoTokenizer.from_pretrained(plain_checkpoints["bart"]).save_pretrained(tmp_path / name)
        message = fails(nmt_runs.SCRIPT, "--model_name_or_path", name, *pairs, *nmt_runs.QUICK)
        assert_names(message, "error: ", "ngram-wdr nmt")
    for name in ("bart", "t5"):
        message = fails(SCRIPT, "--model_name_or_path", plain_checkpoints[name], *files, *QUICK)
        assert_names(message, name, "ngram-wdr clm")
    # The same with heads.
    folder = tmp_path / "with_heads"
    tokenizer = AutoTokenizer.from_pretrained(plain_folders["Olmo2ForCausalLM"])
    with_ngram_heads(plain_seq2seq("bart")).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    message = fails(SCRIPT, "--model_name_or_path", str(folder), *files, *QUICK)
    assert_names(message, "wdr_ngram_bart")


CHECKPOINT_OPTIONS = [
    ("LlamaForCausalLM", ["--block_size", "25"], ("`--block_size`", "24")),
    ("BloomForCausalLM", ["--ngram_size", "16"], ("`--block_size`", "N = 16")),
    ("Olmo2ForCausalLM", ["--ngram_target", "none", "--ngram_size", "3"], ("`--ngram_target none`",)),
]


@pytest.mark.parametrize(("name", "options", "named"), CHECKPOINT_OPTIONS)
def test_options_that_do_not_suit_a_checkpoint(name, options, named, fails, plain_folders, files):
    message = fails(SCRIPT, "--model_name_or_path", plain_folders[name], *files, *QUICK, *options)
    assert_names(message, *named)


PRESET_OPTIONS = {
    "--preset tiny-rf --use_mtp": "`--use_mtp`",
    "--preset tiny-rf --block_size 3": "`--block_size`",
    "--preset paper-rf-ptb --ngram_size 0": "`--ngram_size`",
    "--preset paper-tt --ngram_size 2": "`--preset`",
}


@pytest.mark.parametrize("options", PRESET_OPTIONS)
def test_options_that_do_not_suit_a_preset(options, files, tmp_path):
    with raises_naming(InputError, PRESET_OPTIONS[options]):
        run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), *options.split())
