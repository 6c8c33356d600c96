"""A language modeling run: data, training, evaluation, report."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, default_data_collator

from ...data.errors import InputError
from ...data.pairs import read_lines
from ...data.rows import RowStore, pad_batch, total_length
from ...data.text import check_files
from ...evaluation.lengths import max_positions
from ...method.ensemble import Ensemble, describe_ensemble, ensemble_arguments
from ...modeling.causal import NgramMixin
from ..common.arguments import RunArguments
from ..common.model import can_drop_drafts, check_train_mode, restrict_drafts
from ..common.run import Run
from ..common.run_folder import HIDDEN_STATES, SELF_GENERATED, run_of
from ..common.runs import run_all
from ..common.self_generated import SelfGeneration
from ..common.text_arguments import check_text_options
from ..common.text_data import check_lengths, find_block_size, load_splits, tokenize_splits
from ..trainer import NgramTrainer, to_device
from .arguments import OWN_TEXT_TEMPERATURE, check_clm_arguments
from .cached_rows import CachedRows
from .data import ClmData, check_prompt, find_clm_tokenizer
from .model import build_clm_model
from .own_text import encode_prompts, write_own_text
from .report import ClmResult, print_samples, print_tables

# For the ensemble's sample text if the best λ is 0; often the best λ in the paper.
SAMPLE_LAMBDA = 0.4
# New tokens in the model card's code.
EXAMPLE_TOKENS = 50


def run_clm(arguments: RunArguments) -> list[ClmResult]:
    """
    Train, choose the ensemble on the validation text, evaluate, print, and save the model and its results; `--do_train
    false` skips the training and saves only the tables and metrics. Return a list of the result; with `--compare`, one
    result per kind of model (plain, simple, wdr), the requested one first.
    """
    check_text_options(arguments)
    check_clm_arguments(arguments)
    return run_all(arguments, _complete, print_tables)


def _complete(run: Run) -> ClmResult:
    """Do what is left of one run, from its data to its files, and return its result."""
    data, model = run.complete_training(_prepare, _make_trainer)

    windows = data.windows(run.arguments.data.stride)
    fit = run.fit(model, windows)
    scores = run.score(model, windows, fit)
    ensemble, best_lambda = model.ngram_ensemble(), None
    if "validation" in scores:
        ensemble, best_lambda = scores["validation"].best, scores["validation"].best_lambda
    prompt, samples = _prompt(run, model, data), {}
    if run.training.should_save:
        samples = _samples(run, model, data.tokenizer, prompt, ensemble)

    result = ClmResult(
        **run.result_fields(model),
        ensemble=ensemble,
        best_lambda=best_lambda,
        fit=fit,
        scores=scores,
        samples=samples,
        prompt=data.tokenizer.decode(prompt),
        max_length=min(len(prompt) + EXAMPLE_TOKENS, max_positions(model) or math.inf),
    )
    print_samples(result)
    run.save(result)
    return result


def _prepare(run: Run) -> tuple[ClmData, NgramMixin]:
    """
    Return the tokenized text and the model, loaded or created, with its draft tokens. Raise an `InputError` if they do
    not fit each other or the options.
    """
    arguments, do_train = run.arguments, run.training.do_train
    splits = load_splits(arguments.data, do_train, writes_text=arguments.data.self_generated is not None)
    tokenizer = find_clm_tokenizer(splits, arguments.data, arguments.model, run.tokenizer_folder)
    data = ClmData(**vars(tokenize_splits(splits, tokenizer, arguments.data, run.training.seed)))
    check_prompt(arguments.report.prompt, tokenizer)
    model = build_clm_model(arguments.model, tokenizer, arguments.data.block_size, do_train)
    if arguments.report.use_mtp and not can_drop_drafts(model):
        raise InputError(
            f"`--use_mtp` does not work with {type(model).__name__}, whose state cannot drop rejected drafts: remove "
            "the option."
        )
    check_train_mode(model, arguments)
    check_lengths(data, model.config.ngram_size)
    data.block_size = find_block_size(model, arguments.data.block_size)
    if arguments.data.self_generated is not None:
        data.add_own_text(_own_text(run, model, data), arguments.data.validation_percentage)
    if do_train:
        run.check_batches(data.training_set())
    restrict_drafts(model, arguments.model, data.training_tokens() if do_train else ())
    return data, model


def _own_text(run: Run, model: NgramMixin, data: ClmData) -> list[np.ndarray]:
    """Return the text that the model wrote or, in a run with training, writes now."""
    options = run.arguments.data
    if not run.training.do_train:
        store = RowStore(run_of(run.arguments.model.model_name_or_path).path / SELF_GENERATED)
        return store.limit(options.self_generated, total_length).rows
    lines = []
    if options.prompt_file:
        check_files(options.prompt_file)
        lines = [line for line in read_lines(options.prompt_file) if line.strip()]
    prompts = encode_prompts(lines, data.tokenizer)
    generation = SelfGeneration.of(run.arguments, OWN_TEXT_TEMPERATURE, data.block_size, prompts)
    shows_progress = not run.training.disable_tqdm
    folder = run.folder.path / SELF_GENERATED
    return write_own_text(to_device(model, run.training), prompts, generation, folder, shows_progress).rows


def _training_set(run: Run, model: NgramMixin, data: ClmData) -> Dataset:
    """Return the training set; with `--cache_hidden_states`, with the model's hidden states."""
    training_set = data.training_set()
    if not run.arguments.model.cache_hidden_states:
        return training_set
    cached = CachedRows(training_set, run.folder.path / HIDDEN_STATES, model.get_output_embeddings().weight.shape[1])
    cached.prepare(model, run.arguments)
    return cached


def _make_trainer(run: Run, model: nn.Module, data: ClmData) -> NgramTrainer:
    has_rows = data.own_rows or run.arguments.model.cache_hidden_states
    training = copy.copy(run.training)
    # Trainer would remove the hidden states, which no backbone has as an argument.
    training.remove_unused_columns = False
    return NgramTrainer(
        model,
        training,
        train_dataset=_training_set(run, model, data),
        eval_dataset=data.windows(run.arguments.data.stride).get("validation"),
        processing_class=data.tokenizer,
        data_collator=pad_batch if has_rows else default_data_collator,
        **run.trainer_options(model),
    )


def _prompt(run: Run, model: NgramMixin, data: ClmData) -> torch.LongTensor:
    """Return the tokens of `--prompt`, or else the first ones of the text; at most half of the model's positions."""
    if run.arguments.report.prompt:
        ids = data.tokenizer(run.arguments.report.prompt, return_tensors="pt", add_special_tokens=False).input_ids[0]
    else:
        texts = [stream for split, stream in data.streams.items() if split != "train"]
        ids = torch.as_tensor((texts or data.held_out_rows)[0][:16]).long()
    longest = max_positions(model)
    return ids if longest is None else ids[-(longest // 2) :]


@torch.no_grad()
def _samples(
    run: Run, model: NgramMixin, tokenizer: PreTrainedTokenizerBase, prompt: torch.LongTensor, ensemble: Ensemble
) -> dict[str, str]:
    """
    Sample texts from one prompt with the same seed: one with λ = 0 and, if the model has heads, one with `ensemble`
    (`SAMPLE_LAMBDA` if that is 0). Return them by label, as in `ClmResult`.
    """
    report = run.arguments.report
    if report.sample_tokens == 0:
        return {}
    prompt = prompt[None].to(model.device)
    model.eval()
    samples = {}
    for value in (0.0, ensemble or SAMPLE_LAMBDA) if model.ngram_heads else (0.0,):
        torch.manual_seed(run.training.seed)
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_length=None,
            max_new_tokens=min(report.sample_tokens, (max_positions(model) or math.inf) - prompt.shape[1]),
            do_sample=True,
            temperature=0.8,
            top_k=40,
            **ensemble_arguments(value),
            use_mtp=report.use_mtp and bool(model.ngram_heads),
            return_dict_in_generate=True,
        )
        label = describe_ensemble(value)
        if "speculation" in output:
            label += f", {output.speculation.tokens_per_forward:.2f} tokens per forward pass"
        samples[label] = tokenizer.decode(output.sequences[0])
    return samples
