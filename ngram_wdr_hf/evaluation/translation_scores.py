"""BLEU and chrF of translations, by `sacrebleu`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF


@dataclass(frozen=True)
class TranslationScores:
    """Corpus BLEU (on words) and chrF (on characters), from 0 to 100, with sacrebleu's settings and version."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    num_sentences: int


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> TranslationScores:
    """
    Score raw, detokenized translations with sacrebleu's defaults: `13a` tokenization, case-sensitive. `references` has
    one text per sentence, or a list of them, of the same length for every sentence.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"`references` has {len(references)} entries for {len(hypotheses)} `hypotheses`.")
    # Sacrebleu takes a list of the first references of all sentences, then of the second ones.
    streams = list(zip(*map(as_texts, references), strict=True))
    bleu, chrf = BLEU(), CHRF()
    scores = [metric.corpus_score(hypotheses, streams).score for metric in (bleu, chrf)]
    # Signatures have the number of references only after scoring.
    signatures = [str(metric.get_signature()) for metric in (bleu, chrf)]
    return TranslationScores(*scores, *signatures, num_sentences=len(hypotheses))


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """Return the references of one sentence as a list; a string is a single reference."""
    return [texts] if isinstance(texts, str) else list(texts)
