"""BLEU and chrF of translations, as a metric of the library `evaluate`."""

from collections.abc import Sequence

import datasets
import evaluate

# Absolute imports, because `evaluate` copies this file to its cache.
from ngram_wdr_hf.evaluation.translation_scores import as_texts, score_translations

_DESCRIPTION = """
BLEU, on words, and chrF, on characters, of translations, from 0 to 100, with the defaults of the package `sacrebleu`.
The texts are raw and detokenized.
"""

_KWARGS_DESCRIPTION = r"""
Args:
    predictions (`list[str]`): The translations, one per sentence.
    references (`list[str]` or `list[list[str]]`): One reference per sentence, or a list of several, the same number
        for every sentence.
Returns:
    bleu (`float`): Corpus BLEU.
    chrf (`float`): Corpus chrF.
    bleu_signature (`str`): Settings and version for `bleu`, to be reported with it.
    chrf_signature (`str`): The same for `chrf`.
Examples:
    >>> import evaluate
    >>> from ngram_wdr_hf.metrics import TRANSLATION
    >>> metric = evaluate.load(TRANSLATION)
    >>> results = metric.compute(predictions=["Guten Morgen, Welt!"], references=["Guten Morgen, Welt!"])
"""

_CITATION = """
@inproceedings{post2018call,
    title = {A Call for Clarity in Reporting {BLEU} Scores},
    author = {Post, Matt},
    booktitle = {Proceedings of the Third Conference on Machine Translation: Research Papers},
    year = {2018},
    pages = {186--191}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Translation(evaluate.Metric):
    """BLEU and chrF of translations, from 0 to 100. `compute` returns them with sacrebleu's signatures."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            module_type="metric",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.List(datasets.Value("string"))}
            ),
            reference_urls=["https://aclanthology.org/W18-6319", "https://aclanthology.org/W15-3049"],
        )

    # With several schemas, `evaluate` would take the first sentence's and turn later lists into strings.
    def add_batch(self, *, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> None:
        """Add translations and, for each, a reference or a list of them. `compute` scores all that were added."""
        super().add_batch(predictions=predictions, references=[as_texts(texts) for texts in references])

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Add a translation and its reference or a list of them. `compute` scores all that were added."""
        super().add(prediction=prediction, reference=as_texts(reference))

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float | str]:
        scores = score_translations(predictions, references)
        return {
            "bleu": scores.bleu,
            "chrf": scores.chrf,
            "bleu_signature": scores.bleu_signature,
            "chrf_signature": scores.chrf_signature,
        }
