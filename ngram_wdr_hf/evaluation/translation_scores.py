"""BLEU and chrF of translations, by `sacrebleu`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from ..data.errors import InputError


@dataclass(frozen=True)
class TranslationScores:
    """
    The scores of translations, from 0 to 100, with sacrebleu's signatures.

    Args:
        bleu (`float`): Corpus BLEU, on words.
        chrf (`float`): Corpus chrF, on characters.
        bleu_signature (`str`): Sacrebleu's settings and version for `bleu`, to be reported with it.
        chrf_signature (`str`): The same for `chrf`.
        num_sentences (`int`): Number of scored sentences.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    num_sentences: int


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> TranslationScores:
    """
    Score raw, detokenized text with sacrebleu's defaults: `13a` tokenization, case-sensitive. Raise an `InputError` if
    there are no sentences, or if translations and references do not match in number.

    Args:
        hypotheses (`Sequence[str]`): The translations, one per sentence.
        references (`Sequence[str]` or `Sequence[Sequence[str]]`): One reference per sentence, or a list of them, of
            the same length for every sentence.
    """
    references = [as_texts(texts) for texts in references]
    _check(hypotheses, references)
    # Sacrebleu takes one list per reference: the first ones of all sentences, then the second ones.
    streams = list(zip(*references, strict=True))
    bleu, chrf = BLEU(), CHRF()
    return TranslationScores(
        bleu=bleu.corpus_score(hypotheses, streams).score,
        chrf=chrf.corpus_score(hypotheses, streams).score,
        # Signatures have the number of references only after scoring.
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        num_sentences=len(hypotheses),
    )


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """Return the references of one sentence as a list; a string is a single reference."""
    return [texts] if isinstance(texts, str) else list(texts)


def _check(hypotheses: Sequence[str], references: list[list[str]]) -> None:
    if len(hypotheses) != len(references):
        raise InputError(
            f"`references` must have one entry per translation, got {len(references)} for {len(hypotheses)}."
        )
    if not references:
        raise InputError("`references` is empty: give at least one translation and its reference.")
    for i, texts in enumerate(references):
        if not texts:
            raise InputError(f"`references[{i}]` is empty: add a reference, or leave out the sentence.")
        if len(texts) != len(references[0]):
            raise InputError(
                f"`references[{i}]` has {len(texts)} texts, but `references[0]` has {len(references[0])}: use the "
                "same number for every sentence."
            )
