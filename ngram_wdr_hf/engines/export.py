"""
Write the heads of a causal checkpoint in the form that an inference engine loads, and print the command to serve them.

    ngram-wdr export runs/heads drafts --to vllm               # heads that `ngram-wdr heads` trained
    ngram-wdr export runs/clm drafts --to vllm                 # also writes the model without them, to drafts/model

vLLM needs this package in its environment: `pip install ngram-wdr-hf`.
"""

import json
import shlex
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..backbones.registry import auto_class_of, is_masked
from ..backbones.stock_tasks import stock_config
from ..data.errors import InputError
from ..method.configuration import NgramConfigMixin
from ..method.logits import LogitLayer
from ..modeling.checkpoint import FIELDS_OF_WEIGHTS
from .head_drafts import HeadDrafts
from .vllm_plugin import ARCHITECTURES


def main(arguments: Sequence[str]) -> None:
    """Run `ngram-wdr export`."""
    parser = ArgumentParser("ngram-wdr export", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or name on the Hub of a causal model with trained heads")
    parser.add_argument("destination", type=Path, help="folder to write")
    parser.add_argument("--to", choices=("vllm",), required=True, help="the engine")
    parser.add_argument("--base", metavar="MODEL", help="the plain model, if the heads were trained on it as it is")
    options = parser.parse_args(arguments)
    served, method, depth = export(options.checkpoint, options.destination, options.base)
    drafts = {"method": method, "model": str(options.destination), "num_speculative_tokens": depth}
    print(f"Wrote {options.destination}. To serve it:\n")
    print(f"vllm serve {shlex.quote(served)} --speculative-config {shlex.quote(json.dumps(drafts))}")


def export(checkpoint: str, destination: Path, base: str | None = None) -> tuple[str, str, int]:
    """
    Write the folder with the heads for vLLM. Return the plain model to serve with it, and the method and the number of
    drafts. The plain model is `base`, or that of a run which trained heads on it, or else a copy of the checkpoint
    without heads.
    """
    config = AutoConfig.from_pretrained(checkpoint)
    if not isinstance(config, NgramConfigMixin) or config.ngram_size == 1:
        raise InputError(f"{checkpoint} has no N-gram heads to export: train some with `ngram-wdr heads`.")
    if config.is_encoder_decoder or is_masked(config):
        kind = auto_class_of(config.is_encoder_decoder, is_masked(config)).__name__
        raise InputError(f"{checkpoint} is for {kind}, and engines draft for causal models only: choose one of these.")
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    backbone = model.ngram_backbone_class()
    check_backbone(backbone.__name__)
    # vLLM's "eagle" feeds a head its own output, but knows no conjugate terms.
    is_eagle = config.ngram_head_reads == "previous+token" and config.ngram_target == "simple"
    method = "eagle" if is_eagle else "medusa"
    write_drafts(model, destination, method)
    if base is None:
        run = Path(checkpoint) / "run.yaml"
        settings = yaml.safe_load(run.read_text(encoding="utf-8")) if run.exists() else {}
        base = settings.get("model_name_or_path") if settings.get("train_mode") == "heads" else None
    if base is None:
        base = str(destination / "model")
        backbone.from_pretrained(checkpoint, config=stock_config(config)).save_pretrained(base)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(base)
    return base, method, len(model.ngram_head_list)


def check_backbone(name: str) -> None:
    """Raise an `InputError` if vLLM does not know a backbone, as far as that can be told."""
    if find_spec("vllm") is None:
        print("vLLM is not installed here: whether it knows the model is not checked.")
        return
    from vllm import ModelRegistry

    if name not in ModelRegistry.get_supported_archs():
        raise InputError(f"vLLM has no {name}: decode with `generate(use_mtp=True)` instead.")


def write_drafts(model: PreTrainedModel, destination: Path, method: str) -> None:
    """Write the configuration and the weights of [`HeadDrafts`] for a method of vLLM."""
    vocabulary, layer, config = model.ngram_draft_vocabulary(), LogitLayer.of(model), model.config
    if vocabulary is not None:
        layer = layer.select(vocabulary)
    num_tokens, width = layer.weight.shape
    fields = {name: getattr(config, name) for name in FIELDS_OF_WEIGHTS}
    drafts = HeadDrafts(fields, width, num_tokens, layer.bias is not None)
    drafts.heads.load_state_dict(model.ngram_heads.state_dict())
    drafts.shortlist.weight.data = layer.weight.data
    if layer.bias is not None:
        drafts.shortlist.bias.data = layer.bias.data
    drafts.token_ids = torch.arange(num_tokens) if vocabulary is None else vocabulary
    destination.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in drafts.state_dict().items()}, destination / "model.safetensors"
    )
    settings = {
        # "eagle" makes the configuration of its draft model from one like that of the served model.
        **(stock_config(config).to_dict() if method == "eagle" else {"model_type": "medusa"}),
        "architectures": [ARCHITECTURES[method]],
        "hidden_size": width,
        "vocab_size": model.ngram_vocab_size,
        "ngram_vocab_size": model.ngram_vocab_size,
        "ngram_fields": fields,
        "ngram_draft_size": num_tokens,
        "ngram_bias": layer.bias is not None,
        "torch_dtype": str(layer.weight.dtype).removeprefix("torch."),
    }
    (destination / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
