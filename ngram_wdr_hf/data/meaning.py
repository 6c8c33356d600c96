"""Sentence meanings as trees, and which words fit together in them."""

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
    """A noun phrase. `relative` is its relative clause, with a `Gap` instead of the noun; `None` if it has none."""

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
        """Return the German phrase without its relative clause, which may come later in the sentence."""
        article, ending = german_article(self.determiner, self.noun, case, self.plural)
        adjective = self.adjective.stem + ending if self.adjective else ""
        return join(article, adjective, self.noun.german_form(case, self.plural))


class Gap(NounPhrase):
    """The omitted noun phrase of a relative clause. It has a noun for agreement, but no text."""

    def german(self, case: str) -> str:
        return ""


Phrase = NounPhrase | Pronoun


@dataclass(frozen=True)
class Place:
    """A place or goal: a preposition with its phrase."""

    preposition: Preposition
    phrase: Phrase

    def german(self) -> str:
        return contracted(self.preposition.german, self.phrase.german(self.preposition.case))


@dataclass(frozen=True)
class Clause:
    """
    A clause. `receiver` is the dative of a verb of giving; `predicate` and `very` go with "be". `front` is `"adverb"`
    or `"place"` if that part opens the clause, else empty. `None` parts are absent.
    """

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
    """
    One clause, two clauses with a `linker`, or a question. The linker belongs to `second`; with `linker_first`, both
    precede `main`. `asks` is the adverb of a question, such as "why", `None` for a yes-no question.
    """

    main: Clause
    linker: Linker | None = None
    second: Clause | None = None
    linker_first: bool = False
    question: bool = False
    asks: Adverb | None = None


def phrase_kinds(phrase: Phrase | None) -> frozenset[str]:
    """Return the kinds of a phrase's noun, `PERSON` for a pronoun or name, and an empty set for `None`."""
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
    """
    Return the verbs for a subject and an object of these kinds in one of `times`, with `acts` only deliberate actions.
    An empty set means any kind. "be" is repeated, because a random choice should often be it.
    """
    return [
        verb
        for verb in (*VERBS, *[BE] * 8)
        if (not subject or verb.subjects & subject)
        and (not thing or verb.objects & thing)
        and (not times.isdisjoint(verb.tenses) or (FUTURE in times and not verb.stative))
        and not (acts and (verb.stative or not verb.deliberate))
    ]
