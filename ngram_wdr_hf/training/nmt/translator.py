"""Translation of many sentences with all processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.pair_batches import cut_into_batches, encode_sources, pad
from ...method.ensemble import Ensemble, describe_ensemble, ensemble_arguments

logger = logging.get_logger(__name__)


def longest_translation(input_ids: torch.LongTensor, longest: int | None) -> int:
    """
    Return the maximum number of tokens in the translations of a batch: twice the tokens of the longest source plus
    ten, and less than the model's maximum `longest`, unless `None`.
    """
    limit = 2 * input_ids.shape[1] + 10
    return limit if longest is None else min(limit, longest - 1)


@dataclass(frozen=True)
class Translator:
    r"""
    Translation of sentences in batches, shared among processes. A translation is limited to twice the tokens of the
    longest source in its batch, plus ten; a translation that reaches this limit therefore depends on its batch.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        num_beams (`int`, *optional*, defaults to 5): Number of beams; 1 is greedy search.
        length_penalty (`float`, *optional*, defaults to 1.0): Length penalty of beam search.
        batch_tokens (`int`, *optional*, defaults to 4096): Maximum number of source tokens per batch, padding
            included, times the beams.
        longest (`int`, *optional*): The longest input of the model in tokens; longer sources are truncated. `None`
            means no limit.
        prefix (`str`, *optional*, defaults to ""): Text to put before every source.
        process_index (`int`, *optional*, defaults to 0): Index of this process.
        num_processes (`int`, *optional*, defaults to 1): Number of processes that share the batches.
        use_mtp (`bool`, *optional*, defaults to `False`): Whether to decode speculatively, with drafts by the heads;
            needs `num_beams=1`.
        shows_progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar.
    """

    tokenizer: PreTrainedTokenizerBase
    num_beams: int = 5
    length_penalty: float = 1.0
    batch_tokens: int = 4096
    longest: int | None = None
    prefix: str = ""
    process_index: int = 0
    num_processes: int = 1
    use_mtp: bool = False
    shows_progress: bool = True

    @torch.no_grad()
    def __call__(self, model: PreTrainedModel, texts: Sequence[str], ensemble: Ensemble) -> list[str]:
        """
        Return the translations of all texts, in their order, in every process. That of an empty text is empty. The
        model is put in evaluation mode meanwhile.
        """
        was_training = model.training
        model.eval()
        indices = [i for i, text in enumerate(texts) if text and text.strip()]
        nonempty = [texts[i] for i in indices]
        sources, num_truncated = encode_sources(nonempty, self.tokenizer, "given", self.longest, self.prefix)
        if num_truncated and self.process_index == 0:
            logger.warning_once(
                f"Truncated {num_truncated} of {len(texts)} sentences to the model's {self.longest} tokens."
            )
        translated = {}
        with tqdm(
            total=len(sources),
            desc=f"Translating, {describe_ensemble(ensemble)}",
            unit=" sentences",
            leave=False,
            disable=not self.shows_progress,
        ) as bar:
            for i, batch in enumerate(self._batches(sources)):
                if i % self.num_processes == self.process_index:
                    translations = self._translate(model, [sources[k] for k in batch], ensemble)
                    translated |= dict(zip(batch.tolist(), translations, strict=True))
                bar.update(len(batch))
        model.train(was_training)
        if self.num_processes > 1:
            translated = dict(gather_object(list(translated.items())))
        translations = [""] * len(texts)
        for k, i in enumerate(indices):
            translations[i] = translated[k]
        return translations

    def _batches(self, sources: list[list[int]]) -> list[np.ndarray]:
        if not sources:
            return []
        lengths = np.array([len(ids) for ids in sources])
        return cut_into_batches(lengths, self.batch_tokens // self.num_beams, np.argsort(lengths, kind="stable"))

    def _translate(self, model: PreTrainedModel, sources: list[list[int]], ensemble: Ensemble) -> list[str]:
        input_ids = pad(sources, self.tokenizer.pad_token_id).to(model.device)
        attention_mask = pad([[1] * len(ids) for ids in sources], 0).to(model.device)
        generated = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            max_length=None,
            max_new_tokens=longest_translation(input_ids, self.longest),
            do_sample=False,
            **ensemble_arguments(ensemble),
            use_mtp=self.use_mtp,
        )
        return [text.strip() for text in self.tokenizer.batch_decode(generated, skip_special_tokens=True)]
