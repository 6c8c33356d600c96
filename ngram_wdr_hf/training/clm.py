r"""
Train and evaluate a causal language model with N-gram heads.

    ngram-wdr clm                                              # WDR 4-gram on the texts of Python's help, in minutes
    ngram-wdr clm --compare                                    # compare with the plain and simple N-gram models
    ngram-wdr clm --preset paper-tf-small --train_file ptb.train.txt --validation_file ptb.valid.txt \
        --test_file ptb.test.txt --output_dir runs/ptb         # the paper's small Transformer
    ngram-wdr clm --model_name_or_path gpt2 --train_mode heads --dataset_name wikitext \
        --dataset_config wikitext-2-raw-v1 --output_dir runs/heads
    ngram-wdr clm run.yaml --learning_rate 1e-3                # options from a file, overridden on the command line
    ngram-wdr clm --do_train false --model_name_or_path runs/clm
    accelerate launch --multi_gpu -m ngram_wdr_hf clm          # several GPUs

Repeat a command to resume an interrupted run. `python train_clm.py` is the same command.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils.data import ConcatDataset, Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, default_data_collator
from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..data.rows import EvaluationRows, TrainingRows, pad_batch
from ..data.token_stream import EvaluationWindows, StreamedBlocks, TrainingBlocks, evaluation_windows
from ..data.tokenizers import train_bpe_tokenizer, train_word_tokenizer
from ..evaluation.ensemble_fit import EnsembleFit
from ..evaluation.models import generate_after, max_positions
from ..evaluation.scores import Scores
from ..method.ensemble import describe_ensemble, ensemble_arguments
from .frozen_model_data import CachedRows, own_rows
from .new_models import make_model, restrict_drafts
from .options import EnsembleOptions, ModelOptions, RunTrainingArguments, TextOptions, optional, preset_choice
from .parsing import folder_of_run, parse
from .presets import CLM_PRESETS, Preset
from .report import Card, RunResult, compare, ensemble_cells, named_ensembles, run_result, save
from .results import EnsembleSearch, fit_and_score, introduce, load_trained, set_ensemble, train
from .run_folder import RunFolder, settings_of
from .text_data import TextData, find_block_size, find_tokenizer, load_splits, tokenize_splits
from .trainer import NgramTrainer, loss_names, uses_fsdp

# For the ensemble's sample text if the best λ is 0; often the best λ in the paper.
SAMPLE_LAMBDA = 0.4
CARD = Card(
    "A language model",
    "text-generation",
    "AutoModelForCausalLM",
    """inputs = tokenizer({prompt!r}, return_tensors="pt")
ids = model.generate(**inputs, do_sample=True, max_length={max_length})
print(tokenizer.decode(ids[0]))""",
)


@dataclass
class ClmOptions(TextOptions, EnsembleOptions):
    """The text, its evaluation windows, the ensemble, and the sample text."""

    model_options: ClassVar[set[str]] = {"block_size", "stride"}

    tokenizer: str | None = optional(
        "`word` or `bpe`, trained on the text, or a name. Default: the checkpoint's, `word`, or without a text `bpe`."
    )
    self_generated: int | None = optional("Let the checkpoint write this many tokens of training text itself.")
    prompt_file: list[str] | None = optional("Text files with prompts for `--self_generated`, one per line.")
    self_generated_length: int = HfArg(default=256, help="Maximum number of new tokens per row of such text.")
    self_generated_temperature: float = HfArg(default=0.7, help="Its temperature of sampling; 0 is greedy search.")
    self_generated_batch_size: int = HfArg(default=32, help="Number of rows that are written at the same time.")
    server: str | None = optional(
        "URL of an OpenAI-style server of the checkpoint that writes this text, such as http://localhost:8000."
    )
    cache_hidden_states: bool = HfArg(
        default=False, help="With `--train_mode heads`, learn the model's own next tokens, from hidden states on disk."
    )
    stride: int | None = optional("Step of the sliding evaluation window, in tokens. Default: the block size.")
    prompt: str | None = optional("Prompt of the sample texts. Default: the first 16 tokens of the validation text.")
    sample_tokens: int = HfArg(default=60, help="Maximum number of new tokens in a sample text; 0 writes none.")

    def __post_init__(self):
        TextOptions.__post_init__(self)
        EnsembleOptions.__post_init__(self)
        self.check_at_least(1, "stride", "self_generated", "self_generated_length", "self_generated_batch_size")
        self.check_at_least(0, "sample_tokens", "self_generated_temperature")
        if self.self_generated is None and self.prompt_file:
            raise InputError("`--prompt_file` needs `--self_generated TOKENS`: say how much text to write.")
        if self.self_generated is None and self.server:
            raise InputError("`--server` needs `--self_generated TOKENS`: say how much text to write.")
        if self.streaming and (self.self_generated or self.cache_hidden_states):
            raise InputError("`--self_generated` and `--cache_hidden_states` do not work with `--streaming`.")

    @property
    def validates_on_own_text(self) -> bool:
        """Whether the validation text is the model's own: if it writes its training text, and there is no other."""
        return self.self_generated is not None and not self.names_text


@dataclass
class ClmModelOptions(ModelOptions):
    """A new GPT-2, Tensorized Transformer or Reformer by preset, or any causal language model."""

    presets: ClassVar[dict[str, Preset]] = CLM_PRESETS

    preset: str | None = preset_choice(CLM_PRESETS)


def main(arguments: Sequence[str], options_class: type[ClmOptions] = ClmOptions, **command: Any) -> RunResult:
    """Train, choose the ensemble on the validation text, evaluate and save; `command` has arguments of `parse`."""
    classes = (options_class, ClmModelOptions, RunTrainingArguments)
    command = {"prog": "ngram-wdr clm", "description": __doc__, "defaults": {"output_dir": "runs/clm"}, **command}
    options, model_options, training = parse(classes, arguments, **command)
    if uses_fsdp(training) and (options.self_generated or options.cache_hidden_states):
        raise InputError("`--self_generated` and `--cache_hidden_states` do not work with FSDP: train without it.")
    search = EnsembleSearch.of(options, model_options, training, searches=not options.validates_on_own_text)
    with RunFolder.claimed(settings_of(options, model_options, training), training) as folder:
        with training.main_process_first(local=False, desc="preparing data and model"):
            # 1. Data
            splits = load_splits(options, training, needs_text=options.self_generated is None)
            default = "word" if options.names_text else "bpe"
            trainers = {"word": train_word_tokenizer, "bpe": train_bpe_tokenizer}
            tokenizer = folder.tokenizer() or find_tokenizer(options, model_options, splits, trainers, default)
            data = tokenize_splits(splits, tokenizer, options, training.seed)

            # 2. Model
            model = make_model(model_options, "causal", tokenizer, options.block_size, training.do_train)
            block_size = find_block_size(model, options.block_size)
            source = folder if training.do_train else RunFolder(folder_of_run(model_options.model_name_or_path))
            data.own = own_rows(model, tokenizer, options, source, training)
            restrict_drafts(model, model_options, options, data.training_ids())
        texts = evaluation_texts(data, tokenizer, block_size, options.stride)
        introduce(model, data.counts(), training)

        # 3. Train
        if training.do_train and not folder.is_finished():
            train_dataset = training_set(data, block_size)
            if options.cache_hidden_states:
                # An interrupted run can only be resumed in a folder that it has begun.
                if training.should_save and not folder.has_begun():
                    folder.begin(tokenizer)
                train_dataset = CachedRows(train_dataset, folder.path, model, training)
            trainer = NgramTrainer(
                model,
                training,
                train_dataset=train_dataset,
                eval_dataset=texts.get("validation"),
                processing_class=tokenizer,
                data_collator=pad_batch if data.own or options.cache_hidden_states else default_data_collator,
                **search.trainer_options(model_options, training),
            )
            train(trainer, model_options, folder)
        model = load_trained(model, folder)

        # 4. Evaluate, and choose the ensemble
        fit, scores = fit_and_score(model, texts, search, training)
        if "validation" in scores:
            set_ensemble(model, min(scores["validation"].ensembles, key=scores["validation"].nll))
        longest = max_positions(model) or sys.maxsize
        prompt = prompt_ids(options.prompt, tokenizer, data)[-(longest // 2) :]
        samples = sample_texts(model, tokenizer, prompt, options, training.seed) if training.should_save else {}

        # 5. Save and report
        (splits, tables), own = metrics_and_tables(model, fit, scores), model.ngram_ensemble()
        result = run_result(model, folder, splits=splits, tables=tables, ensemble=own, fit=fit, samples=samples)
        max_length = min(len(prompt) + 50, longest)
        save(result, model, folder, CARD, prompt=tokenizer.decode(prompt), max_length=max_length)
    if model_options.compare:
        compare(main, arguments, result, model_options, folder)
    return result


def training_set(data: TextData, block_size: int) -> Dataset | StreamedBlocks:
    """Return the training text, in blocks or streamed blocks, and the rows that the model wrote."""
    if data.streamed is not None:
        return StreamedBlocks(data.streamed, block_size)
    parts = [TrainingRows(data.own.get("train", []))]
    if "train" in data.streams:
        parts.append(TrainingBlocks(data.streams["train"], block_size))
    return ConcatDataset(parts)


def evaluation_texts(
    data: TextData, tokenizer: PreTrainedTokenizerBase, block_size: int, stride: int | None = None
) -> dict[str, EvaluationWindows | EvaluationRows]:
    """Return the evaluation windows by split; for text that the model wrote, its rows."""
    held_out = {split: stream for split, stream in data.streams.items() if split != "train"}
    texts = {split: evaluation_windows(stream, tokenizer, block_size, stride) for split, stream in held_out.items()}
    rows = {"validation": EvaluationRows(data.own["validation"], tokenizer)} if "validation" in data.own else {}
    return rows | texts


def prompt_ids(prompt: str | None, tokenizer: PreTrainedTokenizerBase, data: TextData) -> torch.LongTensor:
    """Return the tokens of `--prompt`, or else the first ones of the validation text."""
    if prompt is not None:
        return tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids[0]
    texts = [stream.ids for split, stream in data.streams.items() if split != "train"]
    return torch.as_tensor((texts or data.own["validation"])[0][:16]).long()


def sample_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: torch.Tensor, options: ClmOptions, seed: int
) -> dict[str, str]:
    """Sample texts from one prompt with the same seed, without and with the ensemble. Return them by label."""
    samples, ensembles, use_mtp = {}, [0.0], options.use_mtp and bool(model.ngram_heads)
    # Heads for drafts alone know no probabilities.
    if model.ngram_heads and model.config.head_loss_tokens != "draft":
        ensembles.append(model.ngram_ensemble() or SAMPLE_LAMBDA)
    for ensemble in ensembles if options.sample_tokens else ():
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": 0.8, "top_k": 40, **ensemble_arguments(ensemble)}
        output = generate_after(model, prompt[None], options.sample_tokens, use_mtp, **sampling)
        label = describe_ensemble(ensemble)
        if "speculation" in output:
            label += f", {output.speculation.mean_acceptance_length:.2f} tokens per forward pass"
        samples[label] = tokenizer.decode(output.sequences[0])
    return samples


def metrics_and_tables(
    model: PreTrainedModel, fit: EnsembleFit | None, scores: dict[str, Scores]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return perplexities by split, and their table: by word if every token is a word, else by token."""
    unit = "word" if all(each.num_words == each.num_tokens for each in scores.values()) else "token"
    own = model.ngram_ensemble()
    has_best = "validation" in scores and len(model.ngram_heads) > 0
    ensembles = named_ensembles(own, scores["validation"].best_lambda if has_best else None, fit)
    splits, cells = {}, {}
    for split, each in scores.items():
        figures = {ensemble: each.perplexity(ensemble, unit) for ensemble in each.ensembles}
        count = each.num_words if unit == "word" else each.num_tokens
        cells[split] = ensemble_cells(f"{unit}s", count, ensembles, figures, own)
        splits[split] = {
            "lambda": [*each.by_lambda()],
            "perplexity": [*each.by_lambda("word").values()],
            "token_perplexity": [*each.by_lambda("token").values()],
            "ensembles": {
                heading: {"perplexity": each.perplexity(key, "word"), "token_perplexity": each.perplexity(key)}
                for heading, key in ensembles.items()
            },
            **dict(zip(loss_names(len(each.head_nlls)), each.head_nlls, strict=True)),
            "num_words": each.num_words,
            "num_tokens": each.num_tokens,
        }
    return splits, {f"Perplexity by {unit}, with and without the heads": cells}
