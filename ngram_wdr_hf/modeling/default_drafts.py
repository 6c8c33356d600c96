"""`use_mtp=True` as a default, in the `generation_config` of a model and of its checkpoints."""

import logging
from typing import Any

from transformers.generation import GenerationMode

from ..decoding.obstacles import CannotDraft
from ..method.typing_bases import Backbone as GenerativeBackbone

logger = logging.getLogger(__name__)
logger.warning_once = logger.warning

# The name of `use_mtp` in a checkpoint. With its own name, `generate` of the stock class, which loads the same
# checkpoint without the heads, would raise an error.
SAVED_USE_MTP = "ngram_use_mtp"
MODES_WITH_DRAFTS = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION)


class DefaultDraftsMixin(GenerativeBackbone):
    """
    Mixin that saves and loads `generation_config.use_mtp`. It is a default: where drafts are not possible, `generate`
    decodes without them, while the argument `use_mtp=True` raises an error.
    """

    def save_pretrained(self, *args, **kwargs):
        options = self.generation_config
        use_mtp = options.use_mtp
        if use_mtp:
            options.use_mtp = None
            setattr(options, SAVED_USE_MTP, True)
            # Loading drops options that Transformers does not know from a file marked as made from the configuration.
            options._from_model_config = False
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            options.use_mtp = use_mtp
            vars(options).pop(SAVED_USE_MTP, None)

    def adjust_generation_fn(self, *args, **kwargs):
        super().adjust_generation_fn(*args, **kwargs)
        if vars(self.generation_config).pop(SAVED_USE_MTP, False):
            self.generation_config.use_mtp = True

    def _ngram_mark_default(self, generation_config: Any, use_mtp: Any) -> None:
        """
        Note in the `generation_config` of one call whether its `use_mtp` is the model's default. `use_mtp` is the
        argument of the call, `None` if there is none.
        """
        is_default = bool(generation_config.use_mtp and self.generation_config.use_mtp) and use_mtp is None
        generation_config.ngram_is_default = is_default
        if is_default:
            # Asked without `use_mtp`, as Transformers warns in every call with several beams.
            generation_config.use_mtp = False
            mode = generation_config.get_generation_mode()
            if mode in MODES_WITH_DRAFTS:
                generation_config.use_mtp = True
            else:
                _log_left_out(f"They do not work with {mode.value.replace('_', ' ')}.")

    def _ngram_leave_out_drafts(self, generation_config: Any, obstacle: CannotDraft) -> None:
        """Decode without drafts if they are only the model's default; else raise the error."""
        if not generation_config.ngram_is_default:
            raise obstacle
        generation_config.use_mtp = False
        _log_left_out(str(obstacle))


def _log_left_out(reason: str) -> None:
    logger.warning_once(f"The drafts that `generation_config` asks for by default are left out. {reason}")
