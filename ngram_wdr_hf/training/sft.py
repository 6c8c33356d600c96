"""Supervised fine-tuning with TRL."""

import inspect

import torch
from transformers import PreTrainedModel
from trl import SFTConfig, SFTTrainer

from .trainer import loss_names


class NgramSFTTrainer(SFTTrainer):
    r"""
    TRL's [`~trl.SFTTrainer`], with its arguments and its treatment of the data, for models with N-gram heads. TRL
    makes its loss from the hidden states and leaves the heads out; here it is the model's own: the N-gram loss in
    training, the ensemble's next-word NLL in evaluation.

    Logged in addition, in training and (with the prefix `eval_`) in evaluation: the NLL of the next word,
    `next_word_loss`, and of each head, `head_1_loss`, `head_2_loss`, ..., averaged over the batches since the last
    log. Of TRL's own metrics, `num_tokens` is logged as ever; `entropy` and `mean_token_accuracy` are the ensemble's
    and logged in evaluation only, as training computes no logits.

    With `peft_config`, name the heads in `modules_to_save`, as `"ngram_heads.0"`, `"ngram_heads.1"`, ...: PEFT freezes
    them otherwise.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> from transformers import AutoTokenizer
    >>> from trl import SFTConfig
    >>> from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
    >>> from ngram_wdr_hf.training.sft import NgramSFTTrainer

    >>> trainer = NgramSFTTrainer(
    ...     WDRNgramGPT2LMHeadModel.from_pretrained("gpt2", ngram_size=4),
    ...     SFTConfig("run", packing=True),
    ...     train_dataset=Dataset.from_dict({"prompt": ["2 + 2 is"], "completion": [" 4."]}),
    ...     processing_class=AutoTokenizer.from_pretrained("gpt2"),
    ... )
    >>> trainer.train()
    ```
    """

    def __init__(self, *args, **kwargs):
        # Check before the datasets are prepared, which can take long.
        given = inspect.signature(SFTTrainer).bind(*args, **kwargs).arguments
        _check_settings(given.get("args"), given.get("compute_loss_func"))
        if not isinstance(given["model"], str):
            _check_model(given["model"])
        super().__init__(*args, **kwargs)
        _check_model(self.model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # A cache would keep Transformers from seeing the boundaries of packed documents.
        inputs["use_cache"] = False
        # Trainer's `compute_loss`, not SFTTrainer's: the model's own loss, scaled for several devices.
        loss, outputs = super(SFTTrainer, self).compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        mode = "train" if self.model.training else "eval"
        self._log_head_losses(mode, outputs.head_losses)
        if mode == "eval":
            self._log_predictions(outputs.logits, inputs["labels"])
        else:
            # Padding-free batches have no mask.
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            self._total_train_tokens += (
                self.accelerator.gather_for_metrics(mask.sum()).sum().item() // self.get_tp_size()
            )
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]
        return (loss, outputs) if return_outputs else loss

    def _log_head_losses(self, mode: str, head_losses: torch.Tensor) -> None:
        # One row per process; after a short last batch, only as many rows are kept as there are samples.
        head_losses = self.accelerator.gather_for_metrics(head_losses[None]).mean(0)
        for name, value in zip(loss_names(len(head_losses)), head_losses.tolist(), strict=True):
            self._metrics[mode][name].append(value)

    def _log_predictions(self, logits: torch.Tensor, labels: torch.LongTensor) -> None:
        """The ensemble's entropy and accuracy over the targets."""
        targets = labels[:, 1:]
        is_target = targets != -100
        # The virtual tokens of prompt tuning come first.
        logits = logits[:, -labels.shape[1] : -1][is_target].float()  # (num_targets, vocab_size)
        num_correct = (logits.argmax(-1) == targets[is_target]).sum()
        log_probabilities = logits.log_softmax(-1)
        entropy_sum = -(log_probabilities.exp() * log_probabilities).sum()
        sums = torch.stack([entropy_sum, num_correct, is_target.sum()])
        entropy_sum, num_correct, count = self.accelerator.gather_for_metrics(sums[None]).sum(0).tolist()
        self._metrics["eval"]["entropy"].append(entropy_sum / max(count, 1))
        self._metrics["eval"]["mean_token_accuracy"].append(num_correct / max(count, 1))


def _check_model(model: PreTrainedModel) -> None:
    # Not `isinstance`: a checkpoint loaded with `trust_remote_code` brings its own copy of the class.
    if not hasattr(model, "ngram_heads"):
        raise ValueError(
            f"`NgramSFTTrainer` is for models with N-gram heads, and `{type(model).__name__}` has none: load it with "
            "a class of `ngram_wdr_hf`, such as `WDRNgramGPT2LMHeadModel.from_pretrained`, or use TRL's `SFTTrainer`."
        )


def _check_settings(args: SFTConfig | None, compute_loss_func) -> None:
    """Check that no setting replaces the model's own loss."""
    advice = None
    if compute_loss_func is not None:
        advice = "leave out `compute_loss_func`, which would replace it."
    elif args is not None and args.label_smoothing_factor:
        advice = "set `model.config.label_smoothing` instead of `label_smoothing_factor`, which would replace it."
    elif args is not None and args.use_liger_kernel:
        advice = "leave out `use_liger_kernel`, whose kernels know nothing of the heads."
    # Plain `TrainingArguments` are fine with TRL, and have no loss type.
    elif isinstance(args, SFTConfig) and args.loss_type != "nll":
        advice = f"leave `loss_type` at 'nll', got {args.loss_type!r}."
    if advice is not None:
        raise ValueError(f"`NgramSFTTrainer` trains on the model's own N-gram loss: {advice}")
