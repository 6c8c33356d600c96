"""Checks that N-gram heads fit a backbone, before training."""

import logging
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
from transformers.utils import ModelOutput

from ..modeling.base import NgramHeadsMixin

logger = logging.getLogger(__name__)

# Model types with another layer or a norm before the output embedding, mostly encoders.
TRANSFORMED_OUTPUT_TYPES = (
    *("bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "inkling_text", "megatron-bert"),
    *("modernbert-decoder", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)
NO_LANGUAGE_MODEL = "it is not a causal or encoder-decoder language model."
NO_PRODUCT = "its logits are not the product of its hidden states and its output embedding (scaled or capped at most)."
OTHER_LOSS = "its loss for `labels` is not that of the next token. Of an encoder-decoder model, use both sides."
LOOKS_AHEAD = (
    "it sees the tokens that it has to predict. Some architectures need `is_decoder=True` in the configuration."
)
# Magnitude of the logits in the probe, large enough for soft-capping to show.
PROBE_LOGITS = 200.0


def _refuse(name: str, reason: str) -> ValueError:
    return ValueError(f"`{name}` cannot get N-gram heads: {reason}")


def check_class(backbone: type[PreTrainedModel]) -> None:
    """Raise a `ValueError` if a class cannot get heads."""
    name, model_type = backbone.__name__, backbone.config_class.model_type
    if not backbone.can_generate():
        raise _refuse(name, NO_LANGUAGE_MODEL)
    if model_type in TRANSFORMED_OUTPUT_TYPES:
        raise _refuse(name, NO_PRODUCT)
    is_causal = name == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if is_causal and model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise _refuse(name, OTHER_LOSS)


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Raise a `ValueError` about `name` if a configuration belongs to a model that is made of several models."""
    if not hasattr(config, "vocab_size"):
        raise _refuse(name, "it is made of several models. Use its language model, the part that writes text.")


def check_model(model: PreTrainedModel) -> None:
    """Raise a `ValueError` unless a model can get heads and its weights can be copied."""
    name = type(model).__name__
    # By name: a model loaded with its checkpoint's code is of another class.
    if "ngram_heads" in dict(model.named_children()):
        raise ValueError(f"`{name}` already has heads (`ngram_size={model.config.ngram_size}`): use it as it is.")
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise _refuse(name, NO_LANGUAGE_MODEL)
    check_config(model.config, name)
    has_adapter = any(hasattr(module, "base_layer") for module in model.modules())
    if has_adapter or any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(f"`{name}` has offloaded weights or an adapter: pass its checkpoint's name instead.")


@torch.no_grad()
def probe(model: NgramHeadsMixin, backbone: type[PreTrainedModel]) -> None:
    """
    Run a model with heads at λ = 0 and its stock class `backbone` on a few tokens. Raise a `ValueError` if their
    logits or losses differ, or if a token is predicted from itself. With offloaded weights, only log a warning.
    """
    name = backbone.__name__
    if any(parameter.is_meta for parameter in model.parameters()):
        logger.warning("`%s` has offloaded weights: skipping the check that N-gram heads fit it.", name)
        return
    inputs = _probe_inputs(model)
    was_training = model.training
    problem = "its own forward pass fails on a few tokens"
    model.eval()
    try:
        largest = float(backbone.forward(model, **inputs).logits.abs().max())
        factor = PROBE_LOGITS / largest if 0 < largest < PROBE_LOGITS else 1.0
        expected, stock_modules = _run(model, partial(backbone.forward, model), inputs, factor)
        problem = "it is not made of a base model that reads tokens and an output embedding"
        output, modules = _run(model, partial(model, ensemble_lambda=0.0), inputs, factor)
    except Exception as error:
        raise _refuse(name, f"{problem} ({type(error).__name__}: {error}).") from error
    finally:
        model.train(was_training)

    logits = expected.logits
    if not logits.isfinite().all():
        raise _refuse(name, "its logits are not finite.")
    precision = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    tolerance = {"rtol": 0.0, "atol": precision * float(logits.abs().max())}
    # Modules are compared, too: an untrained one may not change the logits yet.
    is_product = stock_modules <= modules and logits.shape == output.logits.shape
    if not is_product or not torch.allclose(logits, output.logits, **tolerance):
        raise _refuse(name, NO_PRODUCT)
    if not torch.allclose(logits[0, :-1], logits[1, :-1], **tolerance):
        raise _refuse(name, LOOKS_AHEAD)
    # Custom classes may not compute a loss.
    if expected.loss is not None and not torch.allclose(expected.loss.to(output.loss.dtype), output.loss, **tolerance):
        raise _refuse(name, OTHER_LOSS)


def _probe_inputs(model: NgramHeadsMixin) -> dict[str, Any]:
    """Return two rows of six tokens, of an encoder-decoder model the decoder's, that differ only in the last one."""
    ids = (torch.arange(6, device=model.device) * 7 + model.ngram_vocab_size // 2).repeat(2, 1)
    ids[1, -1] += 1
    ids %= model.ngram_vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "labels": ids}
    if hasattr(model.config, "output_router_logits"):
        inputs["output_router_logits"] = False  # The load-balancing loss is not part of the next-token loss.
    if model.config.is_encoder_decoder:
        inputs |= {"input_ids": ids[:1].expand(2, -1), "decoder_input_ids": ids}
    return inputs


def _run(
    model: NgramHeadsMixin, forward: Callable, inputs: dict[str, Any], factor: float
) -> tuple[ModelOutput, set[nn.Module]]:
    """
    Call `forward` with the input of the output embedding multiplied by `factor`. Return the output, and the modules
    with parameters of their own that were called.
    """
    called = set()

    def scale(_: nn.Module, args: tuple) -> tuple:
        # Token ids are left alone: the module may be the input embedding as well.
        return (args[0] * factor, *args[1:]) if args[0].is_floating_point() else args

    hooks = [model.get_output_embeddings().register_forward_pre_hook(scale)]
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_hook(lambda module, *_: called.add(module)))
    try:
        return forward(**inputs), called
    finally:
        for hook in hooks:
            hook.remove()
