"""BLEU and chrF of translations, by `sacrebleu`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from ..data.errors import InputError


@dataclass(frozen=True)
class TranslationScores:
    """
    The scores of a set of translations, from 0 to 100, and how they were counted.

    Args:
        bleu (`float`): Corpus BLEU, by words.
        chrf (`float`): Corpus chrF, by characters.
        bleu_signature (`str`): The settings and the version behind `bleu`, to be reported with it.
        chrf_signature (`str`): The same for `chrf`.
        num_sentences (`int`): How many sentences were scored.
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
    Scores raw, detokenised text with sacrebleu's defaults: its own `13a` tokens, upper and lower case as they are.

    Args:
        hypotheses (`Sequence[str]`): The translations, one a sentence.
        references (`Sequence[str]` or `Sequence[Sequence[str]]`): What they should be: for each sentence one text or
            several, as many for every sentence.
    """
    references = [as_texts(texts) for texts in references]
    _check(hypotheses, references)
    # Sacrebleu takes the first references of all sentences, then the second ones, and so on.
    streams = list(zip(*references, strict=True))
    bleu, chrf = BLEU(), CHRF()
    return TranslationScores(
        bleu=bleu.corpus_score(hypotheses, streams).score,
        chrf=chrf.corpus_score(hypotheses, streams).score,
        # Signatures know the number of references only after the scoring.
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        num_sentences=len(hypotheses),
    )


def as_texts(texts: str | Sequence[str]) -> list[str]:
    """The references of a sentence; a single one may be a string."""
    return [texts] if isinstance(texts, str) else list(texts)


def _check(hypotheses: Sequence[str], references: list[list[str]]) -> None:
    if len(hypotheses) != len(references):
        raise InputError(f"{len(hypotheses)} translations have {len(references)} sets of references: give as many.")
    if not references:
        raise InputError("There is no translation to score: give at least one.")
    for i, texts in enumerate(references):
        if not texts:
            raise InputError(f"`references[{i}]` is empty: give the sentence a reference, or leave it out.")
        if len(texts) != len(references[0]):
            raise InputError(
                f"`references[0]` has {len(references[0])} texts and `references[{i}]` has {len(texts)}: "
                "keep as many for every sentence as the one with the fewest has."
            )
