"""Tests that fail with older versions of Transformers, for a reason that a newer one removes: expected failures."""

import transformers
from packaging.version import Version

VERSION = Version(Version(transformers.__version__).base_version)
# By the version that mends it: what is missing or wrong in Transformers, and parts of the names of the tests.
MENDED = {
    "5.17": {
        "a ModernBERT without sliding windows cannot be created": (
            *("test_other_tasks[mlm]", "test_smoke[mlm]", "test_killed_and_resumed[mlm]", "test_compare[mlm-"),
            *("test_repeated_and_evaluated[mlm]", "test_mlm.py::test_run_and_its_files", "test_heads_of_a_plain_"),
            *("test_mlm.py::test_scores_are", "test_heads_without_targets_have", "test_evaluation_with_other_masks"),
        ),
    },
    "5.18": {
        "`Cache.reset` keeps the length of a dynamic cache": (
            *(
                f"test_verbs_reach_the_history[{kind}-reset]"
                for kind in ("lazy", "dynamic", "hybrid", "encoder-decoder")
            ),
            *("test_cache_operations", "test_cropped_reordered_and_reset_caches", "test_cross_attention"),
        ),
        "a sliding window keeps the past of one forward pass only": (
            *("test_verbs_reach_the_history[sliding-", "test_tokens_read_without_the_ensemble[sliding]"),
        ),
        "Trainer clears the special tokens that a tokenizer lacks, the padding of a Reformer among them": (
            *("test_card_and_saved_generation", "test_the_papers_backbones[tiny-rf-"),
        ),
        "a UMT5 sees the tokens that it has to predict": ("[UMT5ForConditionalGeneration]",),
        "the Auto classes load an adapter without its `modules_to_save`, and report them as missing": (
            *("test_adapter_on_a_saved_base_with_heads[auto]", "test_adapter_on_a_saved_base_with_heads[pipeline]"),
        ),
        "layer types of a saved Lfm2 are renamed": ("test_checkpoint[Lfm2ForCausalLM]",),
    },
    "5.21": {
        "there is no quantized cache without other packages": (
            *("test_options[quantized cache-", "test_left_out_where_it_is_not_possible[quantized-"),
        ),
        "a T5Gemma changes when it is saved and loaded": ("test_heads_on_a_capped_encoder_decoder_model",),
    },
}


def expected_failure(name: str) -> str | None:
    """Return why a test of this name is expected to fail with the installed version; `None` if it is not."""
    for version, reasons in MENDED.items():
        for reason, parts in reasons.items():
            if Version(version) > VERSION and any(part in name for part in parts):
                return f"before Transformers {version}, {reason}"
    return None
