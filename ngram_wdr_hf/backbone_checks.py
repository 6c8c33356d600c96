"""What N-gram heads cannot be put on: said in a sentence, before anything is trained."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .checkpoint_wdr_ngram import HEADS_PREFIX
from .modeling_wdr_ngram import NgramMixin


def check_class(backbone: type[PreTrainedModel]) -> None:
    """Raises a `ValueError` for a class that heads cannot be put on."""
    name = backbone.__name__
    if not backbone.can_generate():
        raise ValueError(
            f"A {name} is no causal or encoder-decoder language model, and N-gram heads predict the words that come "
            "next: use the architecture's `ForCausalLM` or `ForConditionalGeneration` class."
        )


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


def check_complete(name: Any, model: NgramMixin, info: dict[str, Any]) -> None:
    """Raises a `ValueError` unless every weight but the heads' was found, and nothing like an adapter beside them."""
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted(key for key in info["missing_keys"] if key in parameters and not key.startswith(HEADS_PREFIX))
    if missing:
        raise ValueError(
            f"{name} is no complete {model.backbone_class().__name__}: it has no `{missing[0]}` (a model for another "
            "task, or one with an adapter in it, has other weights), and heads on untrained weights learn nothing."
        )


@torch.no_grad()
def probe(model: NgramMixin, backbone: type[PreTrainedModel]) -> None:
    """
    Compares the model without heads' help with its own stock class on a few tokens: raises a `ValueError` for one that
    is put together in a way that is not known here, rather than let it be trained wrongly.
    """
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        return
    vocab_size = model._target_vocab_size()
    # The last token is not the same in both rows.
    ids = (torch.arange(12, device=model.device).view(2, 6) * 7 + vocab_size // 2) % vocab_size
    ids[1] = ids[0]
    ids[1, 5] = (ids[0, 5] + 1) % vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "labels": ids}
    if model.config.is_encoder_decoder:
        inputs = {**inputs, "input_ids": ids[:1].expand(2, -1), "decoder_input_ids": ids}
    name = backbone.__name__
    was_training = model.training
    model.eval()
    problem = "it cannot read a few tokens by itself"
    # A mixture's loss for uneven loads is no part of the prediction.
    routers = getattr(model.config, "output_router_logits", None)
    called: list[set[torch.nn.Module]] = [set(), set()]
    hooks = [
        part.register_forward_hook(lambda part, *_: called[-1].add(part))
        for part in model.modules()
        if any(True for _ in part.parameters(recurse=False))
    ]
    try:
        if routers:
            model.config.output_router_logits = False
        expected = backbone.forward(model, **inputs)
        called.reverse()
        problem = "it is not made of a base model that reads tokens and an output embedding"
        found = model(**inputs, ensemble_lambda=0.0)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: {problem} ({type(error).__name__}: {reason[:200]})."
        ) from error
    finally:
        model.train(was_training)
        if routers:
            model.config.output_router_logits = routers
        for hook in hooks:
            hook.remove()
    logits = expected.logits
    if not bool(logits.isfinite().all()):
        raise ValueError(f"N-gram heads cannot be put on this {name}: its own logits are not finite numbers.")
    tolerance = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    tolerance = tolerance * float(logits.abs().max())
    # A part that has learned nothing yet may change nothing.
    uses_all = called[0] <= called[1]
    is_close = logits.shape == found.logits.shape and torch.allclose(logits, found.logits, rtol=0.0, atol=tolerance)
    if not (is_close and uses_all):
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: its logits are not the product of its hidden states and its "
            "output embedding (scaled or soft-capped at most), so that the heads could not predict through it."
        )
    if not torch.allclose(logits[0, :5], logits[1, :5], rtol=0.0, atol=tolerance):
        raise ValueError(
            f"A {name} with this configuration sees the words that it is to predict, as an encoder does: N-gram heads "
            "are for causal models (some architectures have a configuration field `is_decoder` that makes them so)."
        )
    # A class of one's own may have no loss.
    if expected.loss is not None and not torch.allclose(
        expected.loss.to(found.loss.dtype), found.loss, rtol=0.0, atol=tolerance
    ):
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: its loss for `labels` is not that of the next token. (The "
            "decoder of an encoder-decoder model, for one, does not shift them: use the whole model.)"
        )
