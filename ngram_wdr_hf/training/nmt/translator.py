"""Translation of many sentences, by all processes together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.pair_batches import cut_into_batches, encode_sources, pad

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Translator:
    r"""
    How sentences are translated. A translation may have twice as many tokens as the longest source in its batch, plus
    ten; one that does not end by itself can therefore depend on the batch.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        num_beams (`int`, *optional*, defaults to 5): Beams of the search.
        length_penalty (`float`, *optional*, defaults to 1.0): The power of the length in a translation's score.
        batch_tokens (`int`, *optional*, defaults to 4096): Tokens at a time, those of all beams together.
        longest (`int`, *optional*): How many tokens the model can see.
        prefix (`str`, *optional*, defaults to ""): What stands before every source.
        process_index (`int`, *optional*, defaults to 0): Which share to translate.
        num_processes (`int`, *optional*, defaults to 1): How many shares there are.
        use_mtp (`bool`, *optional*, defaults to `False`): Whether the heads draft; only without beams.
        shows_progress (`bool`, *optional*, defaults to `True`): Whether to show a bar.
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
    def __call__(self, model: PreTrainedModel, texts: Sequence[str], ensemble_lambda: float) -> list[str]:
        """The translations, in the order of `texts`; an empty text has an empty one."""
        was_training = model.training
        model.eval()
        places = [i for i, text in enumerate(texts) if text and text.strip()]
        given = [texts[i] for i in places]
        sources, num_cut = encode_sources(given, self.tokenizer, "given", self.longest, self.prefix)
        if num_cut and self.process_index == 0:
            logger.warning_once(
                f"{num_cut} of {len(texts)} sentences were cut to the {self.longest} tokens that the model can see."
            )
        found = {}
        with tqdm(
            total=len(sources),
            desc=f"Translating, λ={ensemble_lambda:g}",
            unit=" sentences",
            leave=False,
            disable=not self.shows_progress,
        ) as bar:
            for i, batch in enumerate(self._batches(sources)):
                if i % self.num_processes == self.process_index:
                    translations = self._translate(model, [sources[k] for k in batch], ensemble_lambda)
                    found |= dict(zip(batch.tolist(), translations, strict=True))
                bar.update(len(batch))
        model.train(was_training)
        if self.num_processes > 1:
            found = dict(gather_object(list(found.items())))
        translations = [""] * len(texts)
        for k, place in enumerate(places):
            translations[place] = found[k]
        return translations

    def _batches(self, sources: list[list[int]]) -> list[np.ndarray]:
        if not sources:
            return []
        lengths = np.array([len(ids) for ids in sources])
        return cut_into_batches(lengths, self.batch_tokens // self.num_beams, np.argsort(lengths, kind="stable"))

    def _translate(self, model: PreTrainedModel, sources: list[list[int]], ensemble_lambda: float) -> list[str]:
        input_ids = pad(sources, self.tokenizer.pad_token_id).to(model.device)
        attention_mask = pad([[1] * len(ids) for ids in sources], 0).to(model.device)
        # A longer translation does not end by itself.
        room = 2 * input_ids.shape[1] + 10
        generated = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            max_length=None,
            max_new_tokens=room if self.longest is None else min(room, self.longest - 1),
            do_sample=False,
            ensemble_lambda=ensemble_lambda,
            use_mtp=self.use_mtp,
        )
        return [text.strip() for text in self.tokenizer.batch_decode(generated, skip_special_tokens=True)]
