"""Model of a translation run: a Marian by preset or a checkpoint, and its search settings."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ... import WDRNgramMarianMTModel
from ...data.errors import InputError
from ...evaluation.lengths import max_positions
from ...evaluation.models import load_checkpoint
from ...modeling.encoder_decoder import NgramSeq2SeqMixin
from ..common.arguments import RunArguments
from ..common.model import DEFAULT_NGRAM_SIZE, config_fields, new_head_fields, new_model
from .arguments import NmtModelArguments

DEFAULT_BEAMS = 5
# The longest translation, in tokens, of models without a limit.
DEFAULT_LENGTH = 512


def build_nmt_model(
    arguments: NmtModelArguments, tokenizer: PreTrainedTokenizerBase, do_train: bool = True
) -> NgramSeq2SeqMixin:
    """
    Return the encoder-decoder checkpoint of `--model_name_or_path` with heads, or a new Marian by preset. A plain
    checkpoint gets new heads if `do_train`, else none.
    """
    fields = config_fields(
        arguments,
        do_train,
        bow_loss_weight=arguments.bow_loss_weight,
        head_loss_tokens=arguments.head_loss_tokens,
    )
    if arguments.model_name_or_path is not None:
        new_heads = new_head_fields(arguments, DEFAULT_NGRAM_SIZE, do_train)
        return load_checkpoint(arguments.model_name_or_path, arguments.model_kind, tokenizer, new_heads, **fields)
    return new_model(
        WDRNgramMarianMTModel,
        arguments,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=tokenizer.eos_token_id,
        scale_embedding=True,
        activation_function="relu",
        **{**new_head_fields(arguments, DEFAULT_NGRAM_SIZE), **arguments.new_config, **fields},
    )


def set_search(arguments: RunArguments, model: PreTrainedModel) -> None:
    """
    Set beams, length penalty and maximum length in the model's `generation_config`, which is saved with the model:
    from the options, else the checkpoint's, else 5 beams. Raise an `InputError` for `--use_mtp` with several beams.
    """
    report, search = arguments.report, model.generation_config
    search.num_beams = report.num_beams or search.num_beams or DEFAULT_BEAMS
    if report.use_mtp and search.num_beams > 1:
        raise InputError(
            f"`--use_mtp` does not work with beam search ({search.num_beams} beams): set `--num_beams 1`."
        )
    if report.length_penalty is not None:
        search.length_penalty = report.length_penalty
    if search.num_beams == 1:
        # Transformers refuses to save these without beam search.
        search.length_penalty = search.early_stopping = None
    search.max_length = max_positions(model) or DEFAULT_LENGTH
