"""The paper's analyses, for any model with N-gram heads."""

from ..evaluation.gradient_diversity import GradientDiversityCallback, gradient_diversity, plot_gradient_diversity
from .head_diagnostics import HeadDiagnostics, count_tokens, find_sentence_ends, head_diagnostics
from .head_figures import plot_acceptance, plot_gain, plot_heads
from .traced_text import Draft, TracedRow, TracedText, TracedToken, traced_text
from .wdr_map import WDRMap, wdr_map

# fmt: off
__all__ = [
    "Draft", "GradientDiversityCallback", "HeadDiagnostics", "TracedRow", "TracedText", "TracedToken", "WDRMap",
    "count_tokens", "find_sentence_ends", "gradient_diversity", "head_diagnostics",
    "plot_acceptance", "plot_gain", "plot_gradient_diversity", "plot_heads", "traced_text", "wdr_map",
]
# fmt: on
