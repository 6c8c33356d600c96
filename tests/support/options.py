"""Options of `generate`: end tokens, strategies, caches, drafts."""

from typing import Any

from transformers import CompileConfig

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
