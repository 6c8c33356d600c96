"""What can be said: trees of meaning, and which words go together in them."""

from dataclasses import dataclass
from functools import cache

from .lexicon import ADJECTIVES, ADVERBS, BE, NOUNS, THE, VERBS
from .words import (
    ALL_TIMES,
    FUTURE,
    PERSON,
    PLURAL,
    PRESENT,
    THIRD,
    Adjective,
    Adverb,
    Determiner,
    Linker,
    Modal,
    Noun,
    Preposition,
    Pronoun,
    Verb,
    contracted,
    german_article,
    join,
)


@dataclass(frozen=True)
class NounPhrase:
    """`relative` is a clause with a `Gap` where the noun would stand."""

    noun: Noun
    determiner: Determiner = THE
    adjective: Adjective | None = None
    plural: bool = False
    relative: "Clause | None" = None

    @property
    def agreement(self) -> int:
        return PLURAL if self.plural else THIRD

    @property
    def definite(self) -> bool:
        return self.determiner.definite

    def german(self, case: str) -> str:
        """Without the relative clause, which may stand elsewhere."""
        article, ending = german_article(self.determiner, self.noun, case, self.plural)
        adjective = self.adjective.stem + ending if self.adjective else ""
        return join(article, adjective, self.noun.german_form(case, self.plural))


class Gap(NounPhrase):
    """What a relative clause does not say again."""

    def german(self, case: str) -> str:
        return ""


Phrase = NounPhrase | Pronoun


@dataclass(frozen=True)
class Place:
    preposition: Preposition
    phrase: Phrase

    def german(self) -> str:
        return contracted(self.preposition.german, self.phrase.german(self.preposition.case))


@dataclass(frozen=True)
class Clause:
    """Who does what. `front`: the adverb or the place opens the main clause; `very`: the predicate is very so."""

    subject: Phrase
    verb: Verb
    object: Phrase | None = None
    receiver: Phrase | None = None
    predicate: Adjective | None = None
    very: bool = False
    tense: str = PRESENT
    modal: Modal | None = None
    negated: bool = False
    adverb: Adverb | None = None
    manner: Adverb | None = None
    place: Place | None = None
    goal: Place | None = None
    front: str = ""


@dataclass(frozen=True)
class Sentence:
    """A clause, two of them with a `linker`, which may open the sentence, or a question, which `asks` for yes or no
    or with an adverb."""

    main: Clause
    linker: Linker | None = None
    second: Clause | None = None
    linker_first: bool = False
    question: bool = False
    asks: Adverb | None = None


def kinds_said(phrase: Phrase | None) -> frozenset[str]:
    """The kinds of what a phrase says."""
    return phrase.noun.kinds if isinstance(phrase, NounPhrase) else PERSON if phrase else frozenset()


@cache
def nouns_of(kinds: frozenset[str]) -> list[Noun]:
    return [noun for noun in NOUNS if noun.kinds & kinds]


@cache
def adjectives_of(kinds: frozenset[str]) -> list[Adjective]:
    return [adjective for adjective in ADJECTIVES if adjective.kinds & kinds]


@cache
def adverbs_of(time: str, negated: bool) -> list[Adverb]:
    return [adverb for adverb in ADVERBS if time in adverb.tenses and not (negated and adverb.middle)]


@cache
def verbs_of(
    subject: frozenset[str], thing: frozenset[str], times: frozenset[str] = ALL_TIMES, acts: bool = False
) -> list[Verb]:
    """The verbs for a subject and an object of these kinds, if any are given; `acts`: one does them on purpose."""
    return [
        verb
        # To be something is as frequent as eight verbs.
        for verb in (*VERBS, *[BE] * 8)
        if (not subject or verb.subjects & subject)
        and (not thing or verb.objects & thing)
        and (not times.isdisjoint(verb.tenses) or (FUTURE in times and not verb.stative))
        and not (acts and (verb.stative or not verb.deliberate))
    ]
