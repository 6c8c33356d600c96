"""Options of `generate`: end tokens, strategies, caches, drafts."""

from typing import Any

import torch
from transformers import CompileConfig, MaxTimeCriteria
from transformers.generation import WatermarkingConfig

END, PAD = 0, 1
NO_END = {"eos_token_id": None, "pad_token_id": PAD}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
STRATEGIES = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beam search": {"num_beams": 3},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "several sequences": {"do_sample": True, "num_return_sequences": 3},
    "several beams": {"num_beams": 4, "num_return_sequences": 2},
    "early stopping beams": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5},
}
PROMPT = torch.tensor([[1, 19, 5, 33, 8], [1, 7, 24, 12, 30]])
FEATURES = {
    "temperature, top-k, top-p": {"do_sample": True, "temperature": 0.7, "top_k": 10, "top_p": 0.8},
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[3], [4, 5]]},
    "minimal length": {"min_new_tokens": 5},
    "forced tokens": {"forced_bos_token_id": 5, "forced_eos_token_id": 0},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda _, ids: list(range(2, 20))},
    "renormalized": {"num_beams": 2, "renormalize_logits": True, "repetition_penalty": 1.2},
    "hidden states and attentions": {"output_hidden_states": True, "output_attentions": True},
}
OF_GPT2 = {
    "min-p": {"do_sample": True, "min_p": 0.02},
    "typical": {"do_sample": True, "typical_p": 0.7},
    "epsilon and eta": {"do_sample": True, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01},
    "top-h": {"do_sample": True, "top_h": 0.4},
    "sequence bias": {"sequence_bias": [[[7], 4.0]]},
    "suppressed tokens": {"suppress_tokens": [2, 3], "begin_suppress_tokens": [4]},
    "length decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "watermark": {"do_sample": True, "watermarking_config": WatermarkingConfig()},
    "several ends": {"eos_token_id": [0, 5, 9]},
    "maximal time": {"stopping_criteria": [MaxTimeCriteria(1e6)]},  # it counts from its making
}
OF_TRANSLATIONS = {
    "encoder repetition penalty": {"encoder_repetition_penalty": 1.5},
    "no bigrams of the source": {"encoder_no_repeat_ngram_size": 2},
    "a prompt": {"decoder_input_ids": PROMPT},
    "a prompt and beams": {"decoder_input_ids": PROMPT, "num_beams": 3},
}
GPT2_OPTIONS = STRATEGIES | FEATURES | OF_GPT2
TRANSLATION_OPTIONS = STRATEGIES | FEATURES | OF_TRANSLATIONS
# With a cost of 0 the heads always draft.
ALWAYS = {"draft_threshold": 0.0}
DRAFTS = {"use_mtp": True, **ALWAYS}
HEADS_ONLY = {"prompt_lookup_num_tokens": 0}
DRAFTING = {
    "as it pays": {},
    # The heads of tiny models do not pay at their real price.
    "heads only, as it pays": {**HEADS_ONLY, "draft_threshold": 0.2},
    "always": ALWAYS,
    "heads only, always": {**HEADS_ONLY, **ALWAYS},
}


def cache_options(cache: str) -> dict[str, Any]:
    """Return the options for a kind of cache, such as "chunked static"."""
    options = {"prefill_chunk_size": 3} if "chunked" in cache else {}
    if "static" in cache:
        options["cache_implementation"] = "static"
    if "compiled" in cache:
        options["compile_config"] = CompileConfig(backend="eager", mode=None, fullgraph=True)
        options["compile_config"]._compile_all_devices = True
    return options
