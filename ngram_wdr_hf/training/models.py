"""The model of a run: new by preset, or from a checkpoint, and which of its weights are trained."""

from importlib.util import find_spec

from torch import nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from .. import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from ..data.errors import InputError
from ..data.tokenizer import start_token_id
from .arguments import ModelArguments
from .presets import CLM_PRESETS

DEFAULT_NGRAM_SIZE = 4


def build_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int | None, do_train: bool = True
) -> WDRNgramGPT2LMHeadModel:
    """
    A new model of the preset's sizes for the tokenizer's vocabulary, or the checkpoint that was asked for. A plain
    checkpoint gets heads if they are to be trained.
    """
    asked = {"ngram_size": arguments.ngram_size, "ngram_target": arguments.ngram_target}
    if arguments.ngram_target == "none":
        asked = {"ngram_size": 1, "ngram_target": None}
    fields = {**asked, "label_smoothing": arguments.label_smoothing}
    fields = {name: value for name, value in fields.items() if value is not None}
    if do_train:
        # The weights that come out of it will have a λ of their own.
        fields["ensemble_lambda"] = 0.0
    try:
        if arguments.model_name_or_path is not None:
            model = _load(arguments.model_name_or_path, fields, DEFAULT_NGRAM_SIZE if do_train else 1)
        else:
            sizes = {"ngram_size": DEFAULT_NGRAM_SIZE, **CLM_PRESETS[arguments.preset].config, **fields}
            model = WDRNgramGPT2LMHeadModel(_new_config(sizes, tokenizer, block_size))
            # For generation only: in a forward, the end of a text is no padding.
            model.generation_config.pad_token_id = tokenizer.eos_token_id
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens and {arguments.model_name_or_path} only "
            f"{model.config.vocab_size}: use the tokenizer that the model was trained with."
        )
    return model


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

    layers = {
        name: layer for name, layer in model.base_model.named_modules() if isinstance(layer, (nn.Linear, Conv1D))
    }
    adapters = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=2 * arguments.lora_rank,
        target_modules=sorted({name.split(".")[-1] for name in layers}),
        # One by one: PEFT cannot wrap the list of heads itself.
        modules_to_save=[f"ngram_heads.{n}" for n in range(len(model.ngram_heads))],
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapters)


def _load(name_or_path: str, fields: dict, ngram_size: int) -> WDRNgramGPT2LMHeadModel:
    config = AutoConfig.from_pretrained(name_or_path)
    known = {WDRNgramConfig.model_type: {}, "gpt2": {"ngram_size": ngram_size}}
    if config.model_type not in known:
        raise InputError(
            f"{name_or_path} is a model of type {config.model_type}: give one of type {' or '.join(known)}."
        )
    return WDRNgramGPT2LMHeadModel.from_pretrained(name_or_path, **{**known[config.model_type], **fields})


def _new_config(fields: dict, tokenizer: PreTrainedTokenizerBase, block_size: int) -> WDRNgramConfig:
    return WDRNgramConfig(
        vocab_size=len(tokenizer),
        n_positions=block_size,
        bos_token_id=start_token_id(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        **fields,
    )
