"""The paper's analyses, for any model with N-gram heads."""

from ..evaluation.gradient_diversity import GradientDiversityCallback, gradient_diversity, plot_gradient_diversity
from .diagnostics import HeadDiagnostics, count_tokens, draft_statistics, find_sentence_ends, head_diagnostics
from .diagnostics_figures import plot_acceptance, plot_gain, plot_heads
from .traced_text import Draft, TracedRow, TracedText, TracedToken, traced_text
from .wdr_map import TargetDiversity, WDRMap, wdr_map

__all__ = [
    "Draft",
    "GradientDiversityCallback",
    "HeadDiagnostics",
    "TargetDiversity",
    "TracedRow",
    "TracedText",
    "TracedToken",
    "WDRMap",
    "count_tokens",
    "draft_statistics",
    "find_sentence_ends",
    "gradient_diversity",
    "head_diagnostics",
    "plot_acceptance",
    "plot_gain",
    "plot_gradient_diversity",
    "plot_heads",
    "traced_text",
    "wdr_map",
]
