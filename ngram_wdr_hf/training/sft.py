"""Supervised fine-tuning with TRL."""

import torch
from trl import SFTTrainer

from .head_schedule import HeadSchedule, SeparateClippingMixin
from .trainer import loss_names


class NgramSFTTrainer(SeparateClippingMixin, SFTTrainer):
    """
    TRL's [`~trl.SFTTrainer`] for models with N-gram heads, with the same arguments and data preparation. TRL's loss
    would ignore the heads. This trainer uses the model's own loss: the N-gram loss in training, the ensemble's
    next-token NLL in evaluation. Instead of TRL's `entropy` and `mean_token_accuracy`, it logs the NLL of each depth,
    `next_word_loss`, `head_1_loss`, ..., averaged over the batches since the last log.

    A `peft_config` needs `modules_to_save=["ngram_heads"]`; otherwise PEFT freezes the heads.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Not `isinstance`: a checkpoint loaded with `trust_remote_code` has its own copy of the class.
        if not hasattr(self.model, "ngram_heads"):
            raise ValueError("`model` must have N-gram heads: add them with `with_ngram_heads`, or use `SFTTrainer`.")
        # What would replace the model's own loss. TRL also accepts plain `TrainingArguments`, without `loss_type`.
        required = {"label_smoothing_factor": 0, "use_liger_kernel": False, "loss_type": "nll"}
        wrong = [name for name, value in required.items() if getattr(self.args, name, value) != value]
        if self.compute_loss_func is not None or wrong:
            raise ValueError(
                f"`{(wrong or ['compute_loss_func'])[0]}` must keep its default: `NgramSFTTrainer` trains with the "
                "model's own N-gram loss (for label smoothing, set `model.config.label_smoothing`)."
            )
        self.add_callback(HeadSchedule())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # With a cache, Transformers ignores the boundaries of packed documents.
        inputs["use_cache"] = False
        # Skip SFTTrainer: Trainer's `compute_loss` uses the model's own loss.
        loss, outputs = super(SFTTrainer, self).compute_loss(model, inputs, True, num_items_in_batch)
        metrics = self._metrics["train" if self.model.training else "eval"]
        # One row per process.
        head_losses = self.accelerator.gather_for_metrics(outputs.head_losses[None]).mean(0)
        for name, value in zip(loss_names(len(head_losses)), head_losses.tolist(), strict=True):
            metrics[name].append(value)
        if self.model.training:
            # Padding-free batches have no attention mask.
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            num_tokens = self.accelerator.gather_for_metrics(mask.sum()).sum().item()
            self._total_train_tokens += num_tokens // self.get_tp_size()
        metrics["num_tokens"] = [self._total_train_tokens]
        return (loss, outputs) if return_outputs else loss
