"""Translation of many sentences with all processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.pair_batches import cut_into_batches, encode_sources, pad
from ..evaluation.models import max_positions
from ..evaluation.modes import evaluating
from ..evaluation.scores import processes
from ..method.ensemble import Ensemble, describe_ensemble, ensemble_arguments

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Translator:
    r"""
    Translation of sentences in batches, shared among processes, with the beams and the length penalty of the model's
    `generation_config`. A translation is limited to twice the tokens of the longest source in its batch, plus ten; a
    translation that reaches this limit therefore depends on its batch.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        batch_tokens (`int`, *optional*, defaults to 4096): Maximum number of source tokens per batch, padding
            included, times the beams.
        prefix (`str`, *optional*, defaults to ""): Text to put before every source.
        use_mtp (`bool`, *optional*, defaults to `False`): Whether to decode speculatively, with drafts by the heads;
            needs greedy search.
        shows_progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar.
    """

    tokenizer: PreTrainedTokenizerBase
    batch_tokens: int = 4096
    prefix: str = ""
    use_mtp: bool = False
    shows_progress: bool = True

    @torch.no_grad()
    def __call__(self, model: PreTrainedModel, texts: Sequence[str], ensemble: Ensemble) -> list[str]:
        """
        Return the translations of all texts, in their order, in every process. That of an empty text is empty. Sources
        that are too long for the model are truncated.
        """
        process_index, num_processes = processes()
        indices = [i for i, text in enumerate(texts) if text and text.strip()]
        longest, given = max_positions(model), [texts[i] for i in indices]
        sources, num_truncated = encode_sources(given, self.tokenizer, longest, self.prefix)
        if num_truncated and process_index == 0:
            logger.warning_once(f"Truncated {num_truncated} of {len(texts)} sentences to {longest} tokens.")
        lengths = np.array([len(ids) for ids in sources])
        budget = self.batch_tokens // (model.generation_config.num_beams or 1)
        batches = cut_into_batches(lengths, budget, np.argsort(lengths, kind="stable")) if sources else []
        translations, label = [""] * len(texts), f"Translating, {describe_ensemble(ensemble)}"
        is_silent = not self.shows_progress or process_index > 0
        with evaluating(model), tqdm(batches, desc=label, unit=" batches", leave=False, disable=is_silent) as bar:
            translated = [
                (indices[k], text)
                for i, batch in enumerate(bar)
                if i % num_processes == process_index
                for k, text in zip(batch, self._translate(model, [sources[k] for k in batch], ensemble), strict=True)
            ]
        for i, text in gather_object(translated) if num_processes > 1 else translated:
            translations[i] = text
        return translations

    def _translate(self, model: PreTrainedModel, sources: list[list[int]], ensemble: Ensemble) -> list[str]:
        input_ids = pad(sources, self.tokenizer.pad_token_id).to(model.device)
        limit, longest = 2 * input_ids.shape[1] + 10, max_positions(model)
        generated = model.generate(
            input_ids=input_ids,
            attention_mask=pad([[1] * len(ids) for ids in sources], 0).to(model.device),
            max_length=None,
            max_new_tokens=limit if longest is None else min(limit, longest - 1),
            do_sample=False,
            use_mtp=self.use_mtp,
            **ensemble_arguments(ensemble),
        )
        return [text.strip() for text in self.tokenizer.batch_decode(generated, skip_special_tokens=True)]
