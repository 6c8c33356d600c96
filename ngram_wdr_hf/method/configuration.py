"""The configuration fields that every model with N-gram heads shares."""

from dataclasses import dataclass

from transformers.activations import ACT2FN

NGRAM_TARGETS = ("wdr", "simple")


@dataclass(repr=False)
class NgramConfigMixin:
    r"""
    Adds the N-gram fields to a Transformers config: `class MyConfig(NgramConfigMixin, BackboneConfig)`.

    Args:
        ngram_size (`int`, *optional*, defaults to 4):
            The paper's N: how many words ahead the model learns to predict. N - 1 heads are added; 1 adds none and
            is the plain backbone.
        ngram_target (`str`, *optional*, defaults to `"wdr"`):
            What a head outputs: `"wdr"`, the n-level word difference representation of the future word, or
            `"simple"`, the word's embedding itself.
        ensemble_lambda (`float`, *optional*, defaults to 0.0):
            The paper's λ: the weight, from 0 to 1, of the heads' past predictions in the next-word prediction.
        label_smoothing (`float`, *optional*, defaults to 0.0):
            The ε of label smoothing, from 0 to 1, in the training loss of the next word and of every head.
        ngram_head_activation (`str`, *optional*, defaults to `"relu"`):
            The activation between the two linear layers of a head, by its name in Transformers.
        draft_vocab_size (`int`, *optional*):
            How many tokens the heads choose from when they draft for `generate(use_mtp=True)`: those that
            `ngram_set_draft_tokens` was given, which are saved with the model, or the first of the vocabulary. All by
            default.
    """

    ngram_size: int = 4
    ngram_target: str = "wdr"
    ensemble_lambda: float = 0.0
    label_smoothing: float = 0.0
    ngram_head_activation: str = "relu"
    draft_vocab_size: int | None = None

    @property
    def keys_to_ignore_at_inference(self) -> list[str]:
        """Outputs that Trainer does not gather: the backbone's, and those that have no row for each text."""
        return [*super().keys_to_ignore_at_inference, "head_losses"]

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.validate_ngram_fields()

    def validate_ngram_fields(self) -> None:
        """Raises a `ValueError` that says what to do when an N-gram field has no meaning."""
        # `bool` is an `int` in Python, and `ngram_size=True` is a mistake.
        if isinstance(self.ngram_size, bool) or not isinstance(self.ngram_size, int) or self.ngram_size < 1:
            raise ValueError(
                f"`ngram_size` must be an integer of at least 1 (1 = the plain model, no heads), got "
                f"{self.ngram_size!r}."
            )
        if self.ngram_target not in NGRAM_TARGETS:
            raise ValueError(f"`ngram_target` must be one of {', '.join(NGRAM_TARGETS)}, got {self.ngram_target!r}.")
        check_fraction("ensemble_lambda", self.ensemble_lambda)
        check_fraction("label_smoothing", self.label_smoothing)
        if self.ngram_head_activation not in ACT2FN:
            raise ValueError(
                f"`ngram_head_activation` must be the name of a Transformers activation such as 'relu' or 'gelu', got "
                f"{self.ngram_head_activation!r}."
            )
        check_draft_vocab_size(self.draft_vocab_size)


def check_fraction(name: str, value: float) -> float:
    """Returns `value` if it is a number from 0 to 1, and raises a `ValueError` that names it otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be a number from 0 to 1, got {value!r}.")
    return value


def check_draft_vocab_size(size: int | None, vocab_size: int | None = None) -> None:
    """Raises a `ValueError` unless `size` is `None` or a number of tokens that there are."""
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"`draft_vocab_size` must be a number of tokens of at least 1, got {size!r}.")
    if vocab_size is not None and size > vocab_size:
        raise ValueError(f"`draft_vocab_size` is {size}, but there are {vocab_size} tokens: choose no more than that.")
