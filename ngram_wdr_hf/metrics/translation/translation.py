"""BLEU and chrF of translations, as a metric of the library `evaluate`."""

from collections.abc import Sequence

import datasets
import evaluate

# Absolute imports, because `evaluate` copies this file to its cache.
from ngram_wdr_hf.evaluation.translation_scores import as_texts, score_translations


class Translation(evaluate.Metric):
    """
    BLEU, on words, and chrF, on characters, of raw, detokenized translations, from 0 to 100, with the defaults of the
    package `sacrebleu`: `bleu`, `chrf`, and their settings and versions, `bleu_signature` and `chrf_signature`. Each
    sentence has one reference, or a list of several, the same number for every sentence.
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="https://aclanthology.org/W18-6319",
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
        )

    # With several schemas, `evaluate` would take the first sentence's and turn later lists into strings.
    def add_batch(self, *, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> None:
        """Add translations and, for each, a reference or a list of them."""
        super().add_batch(predictions=predictions, references=[as_texts(texts) for texts in references])

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Add a translation and its reference or a list of them."""
        super().add(prediction=prediction, reference=as_texts(reference))

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float | str]:
        scores = vars(score_translations(predictions, references))
        return {name: value for name, value in scores.items() if name != "num_sentences"}
