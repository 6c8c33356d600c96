"""Supervised fine-tuning with TRL."""

import inspect

import torch
from transformers import PreTrainedModel
from trl import SFTConfig, SFTTrainer

from .head_schedule import HeadSchedule, SeparateClippingMixin
from .trainer import loss_names


class NgramSFTTrainer(SeparateClippingMixin, SFTTrainer):
    """
    TRL's [`~trl.SFTTrainer`] for models with N-gram heads, with the same arguments and data preparation. TRL's loss
    would ignore the heads. This trainer uses the model's own loss: the N-gram loss in training, the ensemble's
    next-token NLL in evaluation. It also logs the NLL of each depth, `next_word_loss`, `head_1_loss`, ..., averaged
    over the batches since the last log. TRL's `entropy` and `mean_token_accuracy` are those of the ensemble, in
    evaluation only, because training computes no logits.

    With `peft_config`, list the heads in `modules_to_save`, as `"ngram_heads.0"`, `"ngram_heads.1"`, ...; otherwise
    PEFT freezes them.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> from transformers import AutoTokenizer
    >>> from trl import SFTConfig
    >>> from ngram_wdr_hf import NgramSFTTrainer, WDRNgramGPT2LMHeadModel

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
        # Checked first: preparing the datasets can take long.
        given = inspect.signature(SFTTrainer).bind(*args, **kwargs).arguments
        _check_settings(given.get("args"), given.get("compute_loss_func"))
        if not isinstance(given["model"], str):
            _check_model(given["model"])
        super().__init__(*args, **kwargs)
        _check_model(self.model)
        self.add_callback(HeadSchedule())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # With a cache, Transformers ignores the boundaries of packed documents.
        inputs["use_cache"] = False
        # Skip SFTTrainer: Trainer's `compute_loss` uses the model's own loss.
        loss, outputs = super(SFTTrainer, self).compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        mode = "train" if self.model.training else "eval"
        # One row per process.
        head_losses = self.accelerator.gather_for_metrics(outputs.head_losses[None]).mean(0)
        for name, value in zip(loss_names(len(head_losses)), head_losses.tolist(), strict=True):
            self._metrics[mode][name].append(value)
        if mode == "eval":
            self._log_predictions(outputs.logits, inputs["labels"])
        else:
            # Padding-free batches have no attention mask.
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            self._total_train_tokens += (
                self.accelerator.gather_for_metrics(mask.sum()).sum().item() // self.get_tp_size()
            )
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]
        return (loss, outputs) if return_outputs else loss

    def _log_predictions(self, logits: torch.Tensor, labels: torch.LongTensor) -> None:
        """Log mean entropy and accuracy of the ensemble's predictions over the targets of an evaluation batch."""
        targets = labels[:, 1:]
        is_target = targets != -100
        # Prompt tuning puts virtual tokens first; they have no labels.
        logits = logits[:, -labels.shape[1] : -1][is_target].float()  # (num_targets, vocab_size)
        num_correct = (logits.argmax(-1) == targets[is_target]).sum()
        log_probabilities = logits.log_softmax(-1)
        entropy_sum = -(log_probabilities.exp() * log_probabilities).sum()
        sums = torch.stack([entropy_sum, num_correct, is_target.sum()])
        entropy_sum, num_correct, count = self.accelerator.gather_for_metrics(sums[None]).sum(0).tolist()
        self._metrics["eval"]["entropy"].append(entropy_sum / max(count, 1))
        self._metrics["eval"]["mean_token_accuracy"].append(num_correct / max(count, 1))


def _check_model(model: PreTrainedModel) -> None:
    # Not `isinstance`: a checkpoint loaded with `trust_remote_code` has its own copy of the class.
    if not hasattr(model, "ngram_heads"):
        raise ValueError("`model` must have N-gram heads: add them with `with_ngram_heads`, or use `SFTTrainer`.")


def _check_settings(args: SFTConfig | None, compute_loss_func) -> None:
    """Raise a `ValueError` if a setting would replace the model's own loss. `None` means that it is not given."""
    # TRL also accepts plain `TrainingArguments`, which have no `loss_type`.
    required = {"label_smoothing_factor": 0, "use_liger_kernel": False, "loss_type": "nll"}
    wrong = [name for name, value in required.items() if getattr(args, name, value) != value]
    if compute_loss_func is not None or wrong:
        name = wrong[0] if wrong else "compute_loss_func"
        raise ValueError(
            f"`{name}` must be {required.get(name)!r}: `NgramSFTTrainer` trains with the model's own N-gram loss "
            "(for label smoothing, set `model.config.label_smoothing`)."
        )
