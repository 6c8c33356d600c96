"""What N-gram heads cannot be put on: said in a sentence, before anything is trained."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.utils import ModelOutput, logging

from ..modeling.causal import NgramMixin

logger = logging.get_logger(__name__)


# Architectures, by their types, with another layer or a norm before the output embedding: encoders, as a rule.
OTHER_HEADS = (
    *("bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "inkling_text", "megatron-bert"),
    *("modernbert-decoder", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)
NO_PRODUCT = (
    "N-gram heads cannot be put on a {}: its logits are not the product of its hidden states and its output embedding "
    "(scaled or soft-capped at most), so that the heads could not predict through it."
)
OTHER_LOSS = (
    "N-gram heads cannot be put on a {}: its loss for `labels` is not that of the next token. (The decoder of an "
    "encoder-decoder model, for one, does not shift them: use the whole model.)"
)
LOOKS_AHEAD = (
    "A {} with this configuration sees the words that it is to predict, as an encoder does: N-gram heads are for "
    "causal models (some architectures have a configuration field `is_decoder` that makes them so)."
)
# How large the probe makes logits, for a bound on them to show.
PROBED_LOGITS = 200.0


def check_class(backbone: type[PreTrainedModel]) -> None:
    """Raises a `ValueError` for a class that heads cannot be put on."""
    name, model_type = backbone.__name__, backbone.config_class.model_type
    if not backbone.can_generate():
        raise ValueError(
            f"A {name} is no causal or encoder-decoder language model, and N-gram heads predict the words that come "
            "next: use the architecture's `ForCausalLM` or `ForConditionalGeneration` class."
        )
    if model_type in OTHER_HEADS:
        raise ValueError(NO_PRODUCT.format(name))
    if name == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) and (
        model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    ):
        raise ValueError(OTHER_LOSS.format(name))


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Raises a `ValueError` for a model that is made of several."""
    if not hasattr(config, "vocab_size"):
        raise ValueError(
            f"A {name} is made of several models, and N-gram heads belong on one that reads and writes text: use its "
            "language model alone."
        )


def check_model(model: PreTrainedModel) -> None:
    """Raises a `ValueError` for a model without an output embedding that heads could predict through."""
    name = type(model).__name__
    if isinstance(model, NgramMixin):
        raise ValueError(
            f"This {name} already has N-gram heads (`ngram_size={model.config.ngram_size}`): use it as it is, or "
            "begin with the plain model."
        )
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"A {name} has no output embedding, which N-gram heads predict through: use the architecture's "
            "`ForCausalLM` or `ForConditionalGeneration` class."
        )
    check_config(model.config, name)
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ValueError(
            f"Weights of this {name} are offloaded, and cannot be copied: load it by its name, or keep it whole."
        )


@torch.no_grad()
def probe(model: NgramMixin, backbone: type[PreTrainedModel]) -> None:
    """
    Compares the model without its heads' help with its own stock class on a few tokens: raises a `ValueError` for one
    that is put together in a way that is not known here, rather than let it be trained wrongly.
    """
    name = backbone.__name__
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        logger.warning(f"Weights of the {name} are offloaded, so it was not checked whether heads fit it.")
        return
    inputs = _probe_inputs(model)
    was_training, routers = model.training, getattr(model.config, "output_router_logits", None)
    problem = "it cannot read a few tokens by itself"
    model.eval()
    try:
        if routers:
            # A mixture's loss for uneven loads is no part of the prediction.
            model.config.output_router_logits = False
        largest = float(backbone.forward(model, **inputs).logits.abs().max())
        factor = PROBED_LOGITS / largest if 0 < largest < PROBED_LOGITS else 1.0
        expected, needed = _run(model, partial(backbone.forward, model), inputs, factor)
        problem = "it is not made of a base model that reads tokens and an output embedding"
        found, used = _run(model, partial(model, ensemble_lambda=0.0), inputs, factor)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: {problem} ({type(error).__name__}: {reason[:200]})."
        ) from error
    finally:
        model.train(was_training)
        if routers:
            model.config.output_router_logits = routers

    logits = expected.logits
    if not bool(logits.isfinite().all()):
        raise ValueError(f"N-gram heads cannot be put on this {name}: its own logits are not finite numbers.")
    precision = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    closely = {"rtol": 0.0, "atol": precision * float(logits.abs().max())}
    # A part that has learned nothing yet may change nothing, but it would.
    is_product = needed <= used and logits.shape == found.logits.shape
    if not is_product or not torch.allclose(logits, found.logits, **closely):
        raise ValueError(NO_PRODUCT.format(name))
    if not torch.allclose(logits[0, :-1], logits[1, :-1], **closely):
        raise ValueError(LOOKS_AHEAD.format(name))
    # A class of one's own may have no loss.
    if expected.loss is not None and not torch.allclose(expected.loss.to(found.loss.dtype), found.loss, **closely):
        raise ValueError(OTHER_LOSS.format(name))


def _probe_inputs(model: NgramMixin) -> dict[str, Any]:
    """A few tokens, twice, the last of them not the same."""
    vocab_size = model.ngram_vocab_size
    ids = (torch.arange(6, device=model.device) * 7 + vocab_size // 2).repeat(2, 1)
    ids[1, -1] += 1
    ids %= vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "labels": ids}
    if model.config.is_encoder_decoder:
        inputs |= {"input_ids": ids[:1].expand(2, -1), "decoder_input_ids": ids}
    return inputs


def _run(
    model: NgramMixin, forward: Callable, inputs: dict[str, Any], factor: float
) -> tuple[ModelOutput, set[nn.Module]]:
    """One forward pass, with what goes into the output embedding enlarged, and the parts with weights it called."""
    called = set()

    def enlarge(_: nn.Module, args: tuple) -> tuple:
        # Not the ids that an embedding is asked for, where it is the input's and the output's in one.
        return (args[0] * factor, *args[1:]) if args[0].is_floating_point() else args

    hooks = [model.get_output_embeddings().register_forward_pre_hook(enlarge)]
    for part in model.modules():
        if next(part.parameters(recurse=False), None) is not None:
            hooks.append(part.register_forward_hook(lambda part, *_: called.add(part)))
    try:
        return forward(**inputs), called
    finally:
        for hook in hooks:
            hook.remove()
