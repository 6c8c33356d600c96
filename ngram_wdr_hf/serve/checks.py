"""Whether the server can use a checkpoint, before it starts."""

import os

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig
from transformers.utils import GENERATION_CONFIG_NAME

from ..backbones.registry import is_masked
from ..data.errors import InputError
from ..evaluation.models import as_input_error
from ..method.configuration import NgramConfigMixin
from ..method.ensemble import is_plain, weights_of
from ..modeling.saved import naming_missing
from ..modeling.signature import ENSEMBLE_ARGUMENTS

# The server's limit for an answer, in tokens, if a request has none.
DEFAULT_ANSWER = 1024


def check_served_model(name: str, continuous_batching: bool) -> list[str]:
    r"""
    Raise an `InputError` if `transformers serve` cannot use a checkpoint. Return notes about how to use it, a line
    each.

    Args:
        name (`str`): The checkpoint as the server takes it: a folder, or a name on the Hub, with `@revision` or not.
        continuous_batching (`bool`): Whether the server is to batch requests.
    """
    if name.endswith(".gguf"):
        return []
    folder, _, revision = name.partition("@")
    revision = revision or "main"
    with as_input_error(name), naming_missing(folder):
        config = AutoConfig.from_pretrained(folder, revision=revision)
    if not isinstance(config, NgramConfigMixin):
        return []
    if is_masked(config):
        raise InputError(
            f"{name} predicts masked tokens and does not generate text: serve a model of `ngram-wdr clm`."
        )
    if config.is_encoder_decoder:
        raise InputError(
            f"{name} is an encoder-decoder model, and the server would cut off the beginning of its answers: call "
            "`generate`, or translate files with `ngram-wdr nmt --translate`."
        )
    if continuous_batching and _has_ensemble(config, folder, revision):
        raise InputError(
            f"`--continuous-batching` works without the ensemble only, and {name} has one: remove the option, or set "
            '`"ensemble_lambda": 0` in its generation_config.json.'
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{name} has no tokenizer that can be loaded: save the model's with `tokenizer.save_pretrained`."
        ) from error
    notes = []
    if tokenizer.chat_template is None:
        notes.append(
            f"{name} has no chat template: send prompts to /v1/completions. For /v1/chat/completions and "
            "/v1/responses, set `tokenizer.chat_template` and save the tokenizer there."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest <= DEFAULT_ANSWER:
        notes.append(
            f"{name} reads {longest} tokens at most, prompt and answer together: give `max_tokens` in every request, "
            f"as the server's default is {DEFAULT_ANSWER}."
        )
    return notes


def _has_ensemble(config: PreTrainedConfig, folder: str, revision: str) -> bool:
    """Return whether `generate` uses the ensemble: that of the generation config, if it has one, or the model's."""
    options = {}
    # A folder may have none.
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, GENERATION_CONFIG_NAME)):
        with as_input_error(folder):
            options = vars(GenerationConfig.from_pretrained(folder, revision=revision))
    given = [options[name] for name in ENSEMBLE_ARGUMENTS if options.get(name) is not None]
    found = given or [config.ensemble_lambda, config.ensemble_weights]
    return not all(is_plain(weights_of(ensemble, config.ngram_size)) for ensemble in found if ensemble is not None)
