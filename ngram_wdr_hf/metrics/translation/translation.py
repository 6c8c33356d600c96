"""BLEU and chrF of translations, as a metric of the library `evaluate`."""

from collections.abc import Sequence

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF


class Translation(evaluate.Metric):
    """
    BLEU, on words, and chrF, on characters, of raw, detokenized translations, from 0 to 100, with the defaults of the
    package `sacrebleu`: `bleu`, `chrf`, and their settings and versions, `bleu_signature` and `chrf_signature`; and
    `num_sentences`. Each sentence has one reference, or a list of several, the same number for every sentence.
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
        lists = [[texts] if isinstance(texts, str) else texts for texts in references]
        super().add_batch(predictions=predictions, references=lists)

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float | int | str]:
        # Sacrebleu takes a list of the first references of all sentences, then of the second ones.
        streams, results = list(zip(*references, strict=True)), {"num_sentences": len(predictions)}
        for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            results[name] = metric.corpus_score(predictions, streams).score
            # Signatures have the number of references only after scoring.
            results[f"{name}_signature"] = str(metric.get_signature())
        return results
