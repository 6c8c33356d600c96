"""The model of a run: new by preset, or from a checkpoint, and which of its weights are trained."""

import math
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.pytorch_utils import Conv1D

from ... import (
    WDRNgramBertForMaskedLM,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianConfig,
    WDRNgramMarianMTModel,
    WDRNgramModernBertForMaskedLM,
    WDRNgramReformerConfig,
    WDRNgramReformerModelWithLMHead,
    WDRNgramTensorizedTransformerLMHeadModel,
    with_ngram_heads,
)
from ...backbones.registry import auto_class_of, is_masked
from ...data.errors import InputError
from ...data.tokenizer import start_token_id
from ...method.configuration import NgramConfigMixin
from ...modeling.base import NgramHeadsMixin
from ...modeling.causal import NgramMixin
from ...modeling.encoder_decoder import NgramSeq2SeqMixin
from ...modeling.masked import NgramMaskedMixin
from ..mlm.arguments import MlmModelArguments
from ..mlm.presets import NGRAM_SIZE as MASKED_NGRAM_SIZE
from ..nmt.arguments import NmtModelArguments
from .arguments import ModelArguments

DEFAULT_NGRAM_SIZE = 4
# What each script is for.
KINDS = {
    "causal": "a causal language model, for train_clm.py",
    "seq2seq": "an encoder-decoder model, for train_nmt.py",
    "masked": "a masked language model (BERT or ModernBERT), for train_mlm.py",
}
MASKED_MODELS = {"bert": WDRNgramBertForMaskedLM, "modernbert": WDRNgramModernBertForMaskedLM}
LANGUAGE_MODELS = {
    "gpt2": WDRNgramGPT2LMHeadModel,
    "tensorized": WDRNgramTensorizedTransformerLMHeadModel,
    "reformer": WDRNgramReformerModelWithLMHead,
}


def build_clm_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int | None, do_train: bool = True
) -> NgramMixin:
    """The preset's model, new, for blocks of `block_size` tokens, or any causal language model from a checkpoint."""

    def new_model(sizes: dict[str, Any]) -> NgramMixin:
        backbone = arguments.presets[arguments.preset].backbone
        model_class = LANGUAGE_MODELS[backbone]
        config = model_class.config_class(
            vocab_size=len(tokenizer),
            bos_token_id=start_token_id(tokenizer),
            eos_token_id=tokenizer.eos_token_id,
            **{**sizes, **_length_fields(backbone, block_size, sizes)},
        )
        model = model_class(config)
        # For generation only: in a forward, the end of a text is no padding.
        model.generation_config.pad_token_id = tokenizer.eos_token_id
        return model

    return _build(arguments, tokenizer, new_model, do_train, "causal")


def _length_fields(backbone: str, block_size: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """The fields of a backbone's configuration that make it read `block_size` tokens."""
    if backbone != "reformer":
        return {"max_position_embeddings": block_size}
    defaults = WDRNgramReformerConfig()
    names = ("local_attn_chunk_length", "lsh_attn_chunk_length")
    chunk = math.lcm(*(sizes.get(name, getattr(defaults, name)) for name in names))
    # In training, a Reformer reads as many tokens as its two axes of positions have places, in whole chunks.
    places = -(-block_size // chunk) * chunk
    rows = max(divisor for divisor in range(1, math.isqrt(places) + 1) if places % divisor == 0)
    return {"max_position_embeddings": places, "axial_pos_shape": [rows, places // rows]}


def build_nmt_model(
    arguments: NmtModelArguments, tokenizer: PreTrainedTokenizerBase, do_train: bool = True
) -> NgramSeq2SeqMixin:
    """A Marian by preset, or any encoder-decoder checkpoint that there are heads for."""

    def new_model(sizes: dict[str, Any]) -> WDRNgramMarianMTModel:
        config = WDRNgramMarianConfig(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            forced_eos_token_id=tokenizer.eos_token_id,
            scale_embedding=True,
            activation_function="relu",
            **sizes,
        )
        return WDRNgramMarianMTModel(config)

    return _build(arguments, tokenizer, new_model, do_train, "seq2seq", bow_loss_weight=arguments.bow_loss_weight)


def build_mlm_model(
    arguments: MlmModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int | None, do_train: bool = True
) -> NgramMaskedMixin:
    """The preset's BERT or ModernBERT, new, for blocks of `block_size` tokens, or one from a checkpoint."""

    def new_model(sizes: dict[str, Any]) -> NgramMaskedMixin:
        model_class = MASKED_MODELS[arguments.presets[arguments.preset].backbone]
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        config = model_class.config_class(
            vocab_size=len(tokenizer),
            max_position_embeddings=block_size,
            **{name: getattr(tokenizer, name) for name in names},
            **sizes,
        )
        return model_class(config)

    fields = {"wdr_compose": arguments.wdr_compose}
    return _build(arguments, tokenizer, new_model, do_train, "masked", MASKED_NGRAM_SIZE, **fields)


def _build(
    arguments: ModelArguments,
    tokenizer: PreTrainedTokenizerBase,
    new_model: Callable[[dict[str, Any]], PreTrainedModel],
    do_train: bool,
    kind: str,
    default_size: int = DEFAULT_NGRAM_SIZE,
    **fields: Any,
) -> PreTrainedModel:
    """
    A new model of the preset's sizes for the tokenizer's vocabulary, or the checkpoint that was asked for. A plain
    checkpoint gets heads if they are to be trained.
    """
    asked = {"ngram_size": arguments.ngram_size, "ngram_target": arguments.ngram_target}
    if arguments.ngram_target == "none":
        asked = {"ngram_size": 1, "ngram_target": None}
    fields = {**asked, "label_smoothing": arguments.label_smoothing, **fields}
    fields = {name: value for name, value in fields.items() if value is not None}
    if do_train:
        # The weights that come out of it will have a λ of their own.
        fields["ensemble_lambda"] = 0.0
    try:
        if arguments.model_name_or_path is not None:
            ngram_size = default_size if do_train else 1
            model = _load(arguments.model_name_or_path, fields, ngram_size, kind)
        else:
            sizes = arguments.presets[arguments.preset].config
            model = new_model({"ngram_size": default_size, **sizes, **fields})
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    # Transformers' loading makes Marian's sine waves weights to train, which never get a gradient.
    for layer in model.modules():
        if isinstance(layer, MarianSinusoidalPositionalEmbedding):
            layer.requires_grad_(False)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens and {arguments.model_name_or_path} only "
            f"{model.config.vocab_size}: use the tokenizer that the model was trained with."
        )
    return model


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens the model can see; `None` if there is no end."""
    try:
        return getattr(model.config, "max_position_embeddings", None)
    except NotImplementedError:  # Transformers' way to say so in some configurations
        return None


def restrict_drafts(model: PreTrainedModel, size: int | None, training_tokens: Iterable[np.ndarray]) -> None:
    """
    Lets the heads draft no more than `size` tokens, the most frequent of `training_tokens` (pieces of a text); where
    there are none, those that the model has kept, or the first.
    """
    if size is None or not model.ngram_heads:
        return
    vocab_size = model._target_vocab_size()
    if size > vocab_size:
        raise InputError(
            f"`--draft_vocab_size` is {size}, but there are {vocab_size} tokens: choose no more than that."
        )
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in training_tokens:
        counts += np.bincount(piece, minlength=vocab_size)
    if counts.any():
        model.set_draft_tokens(torch.from_numpy(np.argsort(-counts, kind="stable")[:size]))
    else:
        model.config.draft_vocab_size = size
        model._match_draft_tokens()


def choose_weights(model: PreTrainedModel, arguments: ModelArguments) -> nn.Module:
    """Freezes what is not trained; for LoRA, wraps the model."""
    if arguments.train_mode == "full":
        return model
    if not model.ngram_heads and arguments.train_mode == "heads":
        raise InputError("`--train_mode heads` needs heads: set `--ngram_size` to at least 2.")
    if arguments.train_mode == "heads":
        model.requires_grad_(False)
        model.ngram_heads.requires_grad_(True)
        return model
    if find_spec("peft") is None:
        raise InputError("`--train_mode lora` needs the package peft: install it with `pip install peft`.")
    from peft import LoraConfig, get_peft_model

    is_left = (model.get_output_embeddings(), *model.ngram_heads.modules())
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D)) and not any(layer is other for other in is_left)
    }
    adapters = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=2 * arguments.lora_rank,
        target_modules=sorted({name.split(".")[-1] for name in layers}),
        # One by one: PEFT cannot wrap the list of heads itself.
        modules_to_save=[f"ngram_heads.{n}" for n in range(len(model.ngram_heads))],
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type=_peft_task(model.config),
    )
    return get_peft_model(model, adapters)


def _peft_task(config: PreTrainedConfig) -> str | None:
    """What PEFT calls what the model does; of a masked language model it need not know."""
    if is_masked(config):
        return None
    return "SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM"


def _load(name_or_path: str, fields: dict[str, Any], ngram_size: int, kind: str) -> NgramHeadsMixin:
    """A checkpoint of ours, or a plain one with `ngram_size - 1` fresh heads unless the fields say otherwise."""
    config = AutoConfig.from_pretrained(name_or_path)
    found = "masked" if is_masked(config) else "seq2seq" if config.is_encoder_decoder else "causal"
    if found != kind:
        raise InputError(f"{name_or_path} is a model of type {config.model_type}: give {KINDS[kind]}.")
    if isinstance(config, NgramConfigMixin):
        return auto_class_of(config.is_encoder_decoder, is_masked(config)).from_pretrained(name_or_path, **fields)
    return with_ngram_heads(name_or_path, **{"ngram_size": ngram_size, **fields})
