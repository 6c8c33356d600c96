"""Loading of checkpoints, with or without N-gram heads, for training and evaluation."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from ..backbones.registry import auto_class_of, is_masked
from ..backbones.with_heads import with_ngram_heads
from ..data.errors import InputError
from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin
from ..modeling.checkpoint import HEADS_PREFIX
from ..modeling.saved import naming_missing
from ..modeling.signature import ENSEMBLE_ARGUMENTS

# The kinds of model, as error messages describe them.
KINDS = {
    "causal": "a causal language model, for `ngram-wdr clm`",
    "seq2seq": "an encoder-decoder model, for `ngram-wdr nmt`",
    "masked": "a masked language model (BERT or ModernBERT), for `ngram-wdr mlm`",
}


@contextmanager
def as_input_error(name: str = "") -> Iterator[None]:
    """
    Turn a `ValueError` or `OSError` in the `with` block, about a model's configuration or files, into an `InputError`
    with the same message on one line, after `name` if it does not have that.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(reason if name in reason else f"{name}: {reason}") from error


def load_config(name_or_path: str, kind: str) -> PreTrainedConfig:
    """
    Load the configuration of a checkpoint. Raise an `InputError` if that fails, or if the model is not of this `kind`:
    `causal`, `seq2seq` or `masked`.
    """
    with as_input_error(name_or_path), naming_missing(name_or_path):
        config = AutoConfig.from_pretrained(name_or_path)
        actual_kind = "masked" if is_masked(config) else "seq2seq" if config.is_encoder_decoder else "causal"
    if actual_kind != kind:
        raise InputError(f"{name_or_path} has the wrong kind of model, {config.model_type}: choose {KINDS[kind]}.")
    return config


def load_checkpoint(
    name_or_path: str,
    kind: str,
    tokenizer: PreTrainedTokenizerBase,
    new_heads: Mapping[str, Any] = MappingProxyType({"ngram_size": 1}),
    **fields: Any,
) -> NgramHeadsMixin:
    r"""
    Load a checkpoint with N-gram heads, or a plain one and add new heads. Raise an `InputError` if it cannot be
    loaded, is of another kind, or has fewer embeddings than the tokenizer has tokens.

    Args:
        name_or_path (`str`): A folder or a name on the Hub.
        kind (`str`): The expected kind of model: `causal`, `seq2seq` or `masked`.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer to be used with it.
        new_heads (`Mapping[str, Any]`, *optional*): Configuration fields of a plain checkpoint, unless `fields` has
            them. By default it gets no heads (`ngram_size=1`).
        fields: Configuration fields that replace the checkpoint's.
    """
    config = load_config(name_or_path, kind)
    with as_input_error(name_or_path):
        if isinstance(config, NgramConfigMixin):
            load = auto_class_of(config.is_encoder_decoder, is_masked(config)).from_pretrained
        else:
            load, fields = with_ngram_heads, {**new_heads, **fields}
        model, info = _load(load, name_or_path, fields)
    parameters = {name for name, _ in model.named_parameters() if not name.startswith(HEADS_PREFIX)}
    missing = sorted(parameters & info["missing_keys"])
    if missing:
        raise InputError(
            f"{name_or_path} is incomplete, as `{missing[0]}` and {len(missing) - 1} more weights are missing: use a "
            "complete checkpoint."
        )
    if "ensemble_lambda" in fields and model.can_generate():
        # Those saved in `generation_config` would take precedence.
        for name in ENSEMBLE_ARGUMENTS:
            vars(model.generation_config).pop(name, None)
    check_vocabulary(tokenizer, model.config.vocab_size, name_or_path)
    if model.can_generate():
        _check_generation(model, name_or_path)
    # Transformers loads Marian's sinusoidal positions as trainable, but they never get a gradient.
    for layer in model.modules():
        if isinstance(layer, MarianSinusoidalPositionalEmbedding):
            layer.requires_grad_(False)
    return model


def _load(
    load: Callable[..., tuple[NgramHeadsMixin, dict[str, Any]]], name_or_path: str, fields: dict[str, Any]
) -> tuple[NgramHeadsMixin, dict[str, Any]]:
    """Return what `load` does: the model and the loading info."""
    try:
        return load(name_or_path, **fields, output_loading_info=True)
    except (ValueError, OSError):
        raise
    except Exception as error:  # many classes: a configuration with bad values, weights of other shapes, other files
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name_or_path} cannot be loaded, as its configuration and its weights do not fit together, or are "
            f"damaged ({type(error).__name__}: {reason}): use a complete checkpoint."
        ) from error


def _check_generation(model: NgramHeadsMixin, name_or_path: str) -> None:
    """Raise an `InputError` if the model's generation config would fail only when text is generated, at the end."""
    search = model.generation_config
    problem = None
    for name in ("num_beams", "max_length", "max_new_tokens"):
        value = getattr(search, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            problem = f"`{name}` must be an integer >= 1, got {value!r}"
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        value = getattr(search, name)
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(token, int) for token in ids):
            problem = f"`{name}` must be a token id, got {value!r}"
    if model.config.is_encoder_decoder and search.decoder_start_token_id is None and search.bos_token_id is None:
        problem = "`decoder_start_token_id` is not set"
    if problem is not None:
        raise InputError(f"{name_or_path} cannot generate text: in its generation_config.json, {problem}. Correct it.")


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, name_or_path: str) -> None:
    """
    Raise an `InputError` if the checkpoint `name_or_path`, of `vocab_size` embeddings, lacks one for some token of the
    tokenizer.
    """
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens, but {name_or_path} only {vocab_size} embeddings: use the "
            "tokenizer that the model was trained with."
        )
