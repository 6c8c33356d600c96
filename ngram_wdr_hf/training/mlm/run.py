"""A masked language modeling run: data, training, evaluation, report."""

import copy

import torch
from torch import nn
from transformers import default_data_collator

from ...method.documents import IGNORE_INDEX
from ...modeling.masked import NgramMaskedMixin
from ..common.arguments import RunArguments
from ..common.model import check_train_mode
from ..common.run import Run
from ..common.runs import run_all
from ..common.text_arguments import check_text_options
from ..common.text_data import check_lengths, find_block_size, load_splits, tokenize_splits
from .data import MlmData, check_block_size, check_maskable, find_mlm_tokenizer
from .model import build_mlm_model
from .report import MlmResult, print_guesses, print_tables
from .trainer import MlmTrainer

# Tokens shown on either side of a masked token, and predictions shown per token.
CONTEXT, NUM_GUESSES = 6, 3


def run_mlm(arguments: RunArguments) -> list[MlmResult]:
    """
    Train, evaluate, print, and save the model and its results; `--do_train false` skips the training and saves only
    the tables and metrics. Return a list of the result; with `--compare`, one result per kind of model (plain, wdr,
    masked), the requested one first.
    """
    check_text_options(arguments)
    return run_all(arguments, _complete, print_tables)


def _complete(run: Run) -> MlmResult:
    """Do what is left of one run, from its data to its files, and return its result."""
    data, model = run.complete_training(_prepare, _make_trainer)

    scores = run.score(model, data.texts(), trainer_class=MlmTrainer)
    guesses = _guesses(model, data, run.arguments.report.num_examples) if run.training.should_save else []

    result = MlmResult(**run.result_fields(model), ensemble=None, scores=scores, guesses=guesses)
    print_guesses(result)
    run.save(result)
    return result


def _prepare(run: Run) -> tuple[MlmData, NgramMaskedMixin]:
    """
    Return the tokenized text and the model, loaded or created. Raise an `InputError` if they do not fit each other or
    the options.
    """
    arguments, do_train = run.arguments, run.training.do_train
    splits = load_splits(arguments.data, do_train)
    tokenizer = find_mlm_tokenizer(splits, arguments.data, arguments.model, run.tokenizer_folder)
    masking = arguments.data.masking_for(tokenizer)
    data = MlmData(**vars(tokenize_splits(splits, tokenizer, arguments.data, run.training.seed)), masking=masking)
    model = build_mlm_model(arguments.model, tokenizer, arguments.data.block_size, do_train)
    check_train_mode(model, arguments)
    check_lengths(data, model.config.ngram_size)
    check_maskable(data)
    data.block_size = find_block_size(model, arguments.data.block_size)
    check_block_size(data.block_size)
    if do_train:
        run.check_batches(data.blocks(run.training.seed))
    return data, model


def _make_trainer(run: Run, model: nn.Module, data: MlmData) -> MlmTrainer:
    training = run.training
    return MlmTrainer(
        model,
        copy.copy(training),
        train_dataset=data.blocks(training.seed),
        eval_dataset=data.texts().get("validation"),
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
        head_loss_schedule=run.arguments.model.head_loss_schedule,
    )


@torch.no_grad()
def _guesses(model: NgramMaskedMixin, data: MlmData, num_examples: int) -> list[tuple[str, str, str]]:
    """
    Return the first `num_examples` mask tokens of the first evaluation text, each as in `MlmResult`: the text around
    it, the original token, and the model's best predictions.
    """
    tokenizer, text = data.tokenizer, next(iter(data.texts().values()))
    model.eval()
    guesses = []
    for i in range(len(text)):
        block = text[i]
        ids, labels = block["input_ids"], block.pop("labels")
        logits = model(**{name: tensor[None].to(model.device) for name, tensor in block.items()}).logits[0]
        for position in ((labels != IGNORE_INDEX) & (ids == tokenizer.mask_token_id)).nonzero()[:, 0].tolist():
            if len(guesses) == num_examples:
                return guesses
            context = ids[max(position - CONTEXT, 0) : position + CONTEXT + 1]
            best = logits[position].topk(min(NUM_GUESSES, logits.shape[-1])).indices.tolist()
            predicted = ", ".join(tokenizer.decode([token]) for token in best)
            guesses.append((tokenizer.decode(context), tokenizer.decode([labels[position]]), predicted))
    return guesses
