r"""
Train and evaluate a masked language model (BERT or ModernBERT) with WDR heads at its masked words.

    ngram-wdr mlm                                              # 2-level WDR on the texts of Python's help, in minutes
    ngram-wdr mlm --compare                                    # compare with the plain model and `masked` composition
    ngram-wdr mlm --train_file wiki.train.tokens --validation_file wiki.valid.tokens --masking span \
        --wdr_compose masked --output_dir runs/spans           # masked spans, differences of masked words only
    ngram-wdr mlm --preset crammed --dataset_name wikimedia/wikipedia --dataset_config 20231101.en --streaming \
        --output_dir runs/crammed                              # like CrammedBERT, 18,750 steps
    ngram-wdr mlm --do_train false --model_name_or_path runs/mlm
    accelerate launch --multi_gpu -m ngram_wdr_hf mlm          # several GPUs

Repeat a command to resume an interrupted run. `ngram-wdr glue` fine-tunes the result. `python train_mlm.py` is the
same command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from transformers import TrainerCallback, default_data_collator
from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ..data.masking import KINDS as MASKINGS
from ..data.token_stream import StreamedBlocks
from ..data.tokenizers import train_masked_tokenizer
from ..evaluation.scores import score_masked
from ..modeling.masked import COMPOSITIONS
from .new_models import make_model
from .options import KINDS, ModelOptions, RunTrainingArguments, TextOptions, choice, optional, preset_choice
from .parsing import parse
from .presets import MLM_PRESETS, Preset
from .report import Card, RunResult, compare, run_result, save
from .results import introduce, load_trained, score_text, train
from .run_folder import RunFolder, settings_of
from .text_data import find_block_size, find_tokenizer, load_splits, tokenize_splits
from .trainer import NgramTrainer, loss_names

CARD = Card(
    "A masked language model",
    "fill-mask",
    "AutoModelForMaskedLM",
    """inputs = tokenizer("It is " + tokenizer.mask_token, return_tensors="pt")
is_masked = inputs["input_ids"] == tokenizer.mask_token_id
best = model(**inputs).logits[is_masked][0].topk(5).indices
print([tokenizer.decode(token) for token in best])""",
)


@dataclass
class MlmOptions(TextOptions):
    """The text and its masking."""

    model_options: ClassVar[set[str]] = {"block_size", "masking", "mlm_probability"}

    tokenizer: str | None = optional(
        "`bpe`, trained on the text in lower case, or a pretrained one. Default: the checkpoint's, else `bpe`."
    )
    masking: str = choice(MASKINGS, "Mask single tokens or, as in SpanBERT, spans of up to ten.", "token")
    mlm_probability: float = HfArg(default=0.15, help="Share of tokens to mask.")

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least(1 + FRAME, "block_size")
        if not 0 < self.mlm_probability < 1:
            raise InputError(f"`--mlm_probability` must be between 0 and 1, got {self.mlm_probability}.")


@dataclass
class MlmModelOptions(ModelOptions):
    """A new BERT or ModernBERT by preset, or a checkpoint of one."""

    presets: ClassVar[dict[str, Preset]] = MLM_PRESETS
    # There is no ensemble: free heads would have no effect at all.
    default_recipe: ClassVar[str] = "paper"
    # Two levels of word differences: the paper's best on average.
    default_ngram_size: ClassVar[int] = 3
    compared_kinds: ClassVar[dict[str, str]] = {
        "plain": KINDS["plain"],
        "wdr": f"{KINDS['wdr']} --wdr_compose all",
        "masked": f"{KINDS['wdr']} --wdr_compose masked",
    }

    preset: str | None = preset_choice(MLM_PRESETS)
    wdr_compose: str | None = choice(
        COMPOSITIONS,
        "What head n composes a masked token with: `all` of the next n tokens; `masked`, only if all are masked. "
        "Default: the checkpoint's, else `all`.",
    )

    @property
    def kind(self) -> str:
        return "masked" if super().kind != "plain" and self.wdr_compose == "masked" else super().kind


class NewMasks(TrainerCallback):
    """Callback that passes the epoch to the blocks, for new masks; accelerate does so with one process only."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if isinstance(train_dataloader.dataset, MaskedBlocks):
            train_dataloader.dataset.set_epoch(int(state.epoch))


class MaskedTrainer(NgramTrainer):
    """An [`NgramTrainer`] for masked language models. It evaluates `MaskedText`, with `eval_accuracy`."""

    main_name = "masked_word"

    def score(self, model: nn.Module, text: MaskedText, on_batch) -> dict[str, float]:
        scores = self.last_scores = score_masked(model, text, self.args.eval_batch_size, on_batch)
        return {"loss": scores.nll, "perplexity": scores.perplexity, "accuracy": scores.accuracy}


def main(arguments: Sequence[str]) -> RunResult:
    """Train a model, evaluate, and save; with `--compare`, several."""
    classes = (MlmOptions, MlmModelOptions, RunTrainingArguments)
    options, model_options, training = parse(classes, arguments, "ngram-wdr mlm", __doc__, {"output_dir": "runs/mlm"})
    training.select_by("heads_loss" if model_options.train_mode == "heads" else "loss")
    with RunFolder.claimed(settings_of(options, model_options, training), training) as folder:
        with training.main_process_first(local=False, desc="preparing data and model"):
            # 1. Data
            splits = load_splits(options, training)
            trainers = {"bpe": train_masked_tokenizer}
            tokenizer = folder.tokenizer() or find_tokenizer(options, model_options, splits, trainers)
            masking = Masking(tokenizer, options.masking, options.mlm_probability)
            data = tokenize_splits(splits, tokenizer, options, training.seed)

            # 2. Model
            model = make_model(model_options, "masked", tokenizer, options.block_size, training.do_train)
            block_size = find_block_size(model, options.block_size)
        held_out = {split: stream for split, stream in data.streams.items() if split != "train"}
        texts = {split: MaskedText(stream, block_size, masking) for split, stream in held_out.items()}
        introduce(model, data.counts(), training)

        # 3. Train
        if training.do_train and not folder.is_finished():
            if data.streamed is None:
                train_dataset = MaskedBlocks(data.streams["train"], block_size, masking, training.seed)
            else:
                blocks = StreamedBlocks(data.streamed, block_size - FRAME)
                train_dataset = StreamedMaskedBlocks(blocks, masking, training.seed)
            trainer = MaskedTrainer(
                model,
                training,
                train_dataset=train_dataset,
                eval_dataset=texts.get("validation"),
                processing_class=tokenizer,
                data_collator=default_data_collator,
                head_loss_schedule=model_options.head_loss_schedule,
                callbacks=[NewMasks()],
            )
            train(trainer, model_options, folder)
        model = load_trained(model, folder)

        # 4. Evaluate
        metrics, cells = {}, {}
        for split, text in texts.items():
            scores = score_text(score_masked, split, text, training, model=model)
            names = loss_names(len(scores.head_nlls), MaskedTrainer.main_name)
            metrics[split] = {
                "perplexity": scores.perplexity,
                "accuracy": scores.accuracy,
                **dict(zip(names, scores.head_nlls, strict=True)),
                "num_masked": scores.head_counts[0],
                "head_counts": scores.head_counts,
            }
            cells[split] = {
                "masked tokens": f"{scores.head_counts[0]:,}",
                "perplexity": f"{scores.perplexity:.2f}",
                "accuracy": f"{scores.accuracy:.2%}",
                # A head may have no targets.
                **{f"{n}-level NLL": f"{nll:.3f}" for n, nll in enumerate(scores.head_nlls) if n and nll is not None},
            }

        # 5. Save and report
        result = run_result(model, folder, splits=metrics, tables={"Masked tokens": cells})
        save(result, model, folder, CARD)
    if model_options.compare:
        compare(main, arguments, result, model_options, folder)
    return result
