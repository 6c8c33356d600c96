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
from ..evaluation.scores import evaluating, processes
from ..method.ensemble import Ensemble, describe_ensemble, ensemble_arguments

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Translator:
    """
    Translation of sentences in batches, shared among processes, with the beams and the length penalty of the model's
    `generation_config`. A batch has at most `batch_tokens` source tokens, padding included, times the beams; `prefix`
    goes before every source. A translation has at most twice the tokens of the longest source in its batch, plus ten;
    one that reaches this limit therefore depends on its batch. `use_mtp` decodes with drafts by the heads, if there
    are any; it needs greedy search.
    """

    tokenizer: PreTrainedTokenizerBase
    batch_tokens: int = 4096
    prefix: str = ""
    use_mtp: bool = False
    shows_progress: bool = True

    @torch.no_grad()
    def __call__(self, model: PreTrainedModel, texts: Sequence[str], ensemble: Ensemble) -> list[str]:
        """Return the translations of all texts, in every process. Empty texts stay empty, long ones are truncated."""
        process_index, num_processes = processes()
        indices = [i for i, text in enumerate(texts) if text and text.strip()]
        longest, given = max_positions(model), [texts[i] for i in indices]
        sources, num_truncated = encode_sources(given, self.tokenizer, longest, self.prefix)
        if num_truncated and process_index == 0:
            logger.warning_once(f"Truncated {num_truncated} of {len(texts)} sentences to {longest} tokens.")
        lengths = np.array([len(ids) for ids in sources])
        budget = self.batch_tokens // (model.generation_config.num_beams or 1)
        batches = cut_into_batches(lengths, budget, np.argsort(lengths, kind="stable")) if sources else []
        own, label = batches[process_index::num_processes], f"Translating, {describe_ensemble(ensemble)}"
        is_silent, translated = not self.shows_progress or process_index > 0, []
        with evaluating(model):
            for batch in tqdm(own, label, unit=" batches", leave=False, disable=is_silent):
                input_ids = pad([sources[k] for k in batch], self.tokenizer.pad_token_id).to(model.device)
                limit = 2 * input_ids.shape[1] + 10
                generated = model.generate(
                    input_ids=input_ids,
                    attention_mask=pad([[1] * lengths[k] for k in batch], 0).to(model.device),
                    max_length=None,
                    max_new_tokens=limit if longest is None else min(limit, longest - 1),
                    do_sample=False,
                    use_mtp=self.use_mtp and bool(model.ngram_heads),
                    **ensemble_arguments(ensemble),
                )
                outputs = self.tokenizer.batch_decode(generated, skip_special_tokens=True)
                translated += [(indices[k], text.strip()) for k, text in zip(batch, outputs, strict=True)]
        translations = dict(gather_object(translated) if num_processes > 1 else translated)
        return [translations.get(i, "") for i in range(len(texts))]
