"""The package's drafter in Transformers' assisted decoding, as a reference for our own loop."""

from typing import Any, ClassVar

import torch
from transformers.generation import CandidateGenerator, GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from ngram_wdr_hf.decoding.drafter import Drafter, Drafts
from ngram_wdr_hf.decoding.rows import TextRows


class NgramCandidateGenerator(CandidateGenerator):
    r"""
    A candidate generator that drafts with the heads. Transformers' assisted decoding supports one row at a time.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        generation_config ([`GenerationConfig`]): The configuration for [`Drafter`].
        logits_processor (`LogitsProcessorList`): The processors of the model's logits.
    """

    requires_model_outputs = True
    model_kwargs_overrides: ClassVar[dict[str, Any]] = {"return_last_hidden_state": True}

    def __init__(self, model, generation_config: GenerationConfig, logits_processor: LogitsProcessorList):
        self.drafter = Drafter(model, generation_config)
        self.logits_processor = logits_processor
        self.max_length = generation_config.max_length
        self.drafts = Drafts.none(1, model.device)

    def get_candidates(
        self, input_ids: torch.LongTensor, model_outputs, is_first_iteration: bool, n_last_matches: int, **kwargs
    ) -> tuple[torch.LongTensor, torch.FloatTensor | None]:
        if is_first_iteration:
            return input_ids, None
        # After the prefill, a forward pass reads the last token and the drafts.
        position = n_last_matches - self.drafts.depth - 1
        text = TextRows(input_ids, self.max_length, 0, self.logits_processor, StoppingCriteriaList())
        drafts = self.drafter.draft(text, model_outputs.last_hidden_state[:, position], input_ids[:, -1])
        self.drafts = drafts
        if drafts.depth == 0:
            return input_ids, None
        logits = None
        if self.drafter.samples:
            logits = torch.stack(drafts.probabilities, dim=1).log()
        return torch.cat([input_ids, drafts.tokens], dim=1), logits

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, num_matches: int):
        self.drafter.pace.learn(self.drafts.kinds, [int(num_matches)])
