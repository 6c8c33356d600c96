"""Word classes of the English-German grammar: their forms and their agreement."""

import re
from dataclasses import dataclass

NOMINATIVE, ACCUSATIVE, DATIVE = "nominative", "accusative", "dative"
# FUTURE also stands for clauses with a modal verb.
PRESENT, HABIT, PAST, PERFECT, FUTURE = "present", "habit", "past", "perfect", "future"

# Agreement of a finite verb: the index of its form for I / ich, he / er, they / sie.
FIRST, THIRD, PLURAL = range(3)

ALL_TIMES = frozenset({PRESENT, HABIT, PAST, PERFECT, FUTURE})
PERSON = frozenset({"person"})
OWNED = frozenset({"kin", "pet", "object", "text", "idea", "entered", "journey"})


@dataclass(frozen=True)
class Noun:
    """
    A noun. `gender` is m, f or n. `kinds` decides which words it goes with. The `german_plural` of mass nouns is
    empty. Nouns of the kind "weak" have that form also in the singular, except in the nominative.
    """

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    kinds: frozenset[str]

    def german_form(self, case: str, plural: bool) -> str:
        if not plural:
            return self.german_plural if "weak" in self.kinds and case != NOMINATIVE else self.german
        needs_n = case == DATIVE and self.german_plural[-1] not in "ns"
        return self.german_plural + "n" * needs_n


@dataclass(frozen=True)
class Adjective:
    english: str
    german: str
    stem: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Determiner:
    """
    A determiner. `declension` is "der", "dieser" or "ein" for the endings of that word, or "fixed". With `strong`,
    adjectives after it have strong endings.
    """

    english: str
    english_plural: str
    german: str
    declension: str
    definite: bool = False
    strong: bool = False


@dataclass(frozen=True)
class Pronoun:
    english: str
    english_object: str
    forms: dict[str, str]
    agreement: int
    person: int
    definite = True

    def german(self, case: str) -> str:
        return self.forms[case]


class Name(Pronoun):
    """A person's name: it has forms like a pronoun, but the word order of a noun."""


@dataclass(frozen=True)
class Preposition:
    """
    A preposition. `case` is the German case after it, `kinds` those of its noun. With a `local` one, the phrase names
    a place and can open a sentence.
    """

    english: str
    german: str
    case: str
    kinds: frozenset[str]
    local: bool = True


@dataclass(frozen=True)
class Adverb:
    """
    An adverb. `tenses` are those it goes with. With `middle`, it precedes the verb in English, else it comes last.
    With `late`, it follows a definite object in German.
    """

    english: str
    german: str
    tenses: tuple[str, ...] = ()
    middle: bool = False
    late: bool = False


@dataclass(frozen=True)
class EnglishVerb:
    base: str
    present: tuple[str, str, str]
    past: tuple[str, str, str]
    participle: str
    gerund: str


@dataclass(frozen=True)
class GermanVerb:
    """
    A German verb. Finite forms are for ich, er, sie, without the separable `prefix`. If `preterite` is `None`, the
    past is the perfect with `auxiliary`, "haben" or "sein".
    """

    infinitive: str
    zu_infinitive: str
    present: tuple[str, str, str]
    preterite: tuple[str, str, str] | None
    participle: str
    auxiliary: str
    prefix: str


@dataclass(frozen=True)
class Verb:
    """
    A verb with both languages' forms. `subjects` and `objects` are kinds; without objects it is intransitive.
    `receiver` is set for verbs of giving: "to" with a preposition in English, "plain" without. `places` are optional
    unless `needs_place`, `goals` required. `definite` says whether the object must be definite or indefinite, `None`
    if either. A `deliberate` verb goes with modals such as want, a `pastime` with like.
    """

    english: EnglishVerb
    german: GermanVerb
    subjects: frozenset[str]
    objects: frozenset[str] = frozenset()
    particle: str = ""
    preposition: tuple[str, str] = ("", "")
    subject_case: str = NOMINATIVE
    case: str = ACCUSATIVE
    definite: bool | None = None
    receiver: str = ""
    places: tuple[Preposition, ...] = ()
    needs_place: bool = False
    goals: tuple[Preposition, ...] = ()
    manners: tuple[Adverb, ...] = ()
    tenses: tuple[str, ...] = (PRESENT, PRESENT, PAST, PAST, PERFECT, HABIT)
    stative: bool = False
    deliberate: bool = True
    pastime: bool = False


@dataclass(frozen=True)
class Modal:
    """
    A modal. `english` is an auxiliary (a string), or a verb with a `link` such as "to" before the infinitive. `german`
    is a verb, or `None` for the adverb gern. `negated` says whether it can be negated.
    """

    english: EnglishVerb | str
    link: str
    german: GermanVerb | None
    tenses: tuple[str, ...] = (PRESENT,)
    negated: bool = True


@dataclass(frozen=True)
class Linker:
    """
    A conjunction. `order` is the German word order after it: "final" (finite verb last), "main" (as in a main clause)
    or "infinitive" (with zu).
    """

    english: str
    german: str
    order: str = "final"


CONTRACTIONS = {
    "in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom", "in das": "ins",
}  # fmt: skip
# The endings of dieser and of adjectives without an article, for m, f, n and the plural.
STRONG_ENDINGS = {
    NOMINATIVE: ("er", "e", "es", "e"),
    ACCUSATIVE: ("en", "e", "es", "e"),
    DATIVE: ("em", "er", "em", "en"),
}


def strong_ending(noun: Noun, case: str, plural: bool) -> str:
    return STRONG_ENDINGS[case][3 if plural else "mfn".index(noun.gender)]


def german_article(determiner: Determiner, noun: Noun, case: str, plural: bool) -> tuple[str, str]:
    """Return the German article or other determiner for a noun, and the ending of an adjective after it."""
    strong = strong_ending(noun, case, plural)
    weak = "e" if not plural and case != DATIVE and strong != "en" else "en"
    if determiner.declension == "fixed":
        return determiner.german, strong
    if determiner.declension == "der":
        return _der(strong), weak
    # ein alter Mann, ein kleines Kind: ein has no ending, so the adjective has the strong one.
    if determiner.declension == "ein" and (strong == "es" or (strong == "er" and case == NOMINATIVE)):
        return determiner.german, strong
    return determiner.german + strong, strong if determiner.strong else weak


def relative_pronoun(noun: Noun, case: str, plural: bool) -> str:
    return "denen" if plural and case == DATIVE else _der(strong_ending(noun, case, plural))


def _der(ending: str) -> str:
    return "d" + {"e": "ie", "es": "as"}.get(ending, ending)


def contracted(preposition: str, phrase: str) -> str:
    """Join a German preposition and its phrase, contracted if possible: im Garten. An empty phrase gives `""`."""
    if not phrase:
        return ""
    article, _, rest = phrase.partition(" ")
    short = CONTRACTIONS.get(f"{preposition} {article}")
    return f"{short} {rest}" if short else f"{preposition} {phrase}"


def join(*words: str | None) -> str:
    return " ".join(word for word in words if word)


def kinds_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


def english_verb(forms: str) -> EnglishVerb:
    """
    Make a verb from its base, past and participle: "write wrote written", "buy bought" (participle like the past) or
    "open" (regular). The other forms are derived.
    """
    base, *irregular = forms.split()
    # Short stems double the last letter: stop, stopped.
    doubled = base + base[-1] if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]|forget", base) else base
    if re.search(r"[^aeiou]y$", base):
        third, past = base[:-1] + "ies", base[:-1] + "ied"
    else:
        third = base + ("es" if re.search(r"(s|x|ch|sh|o)$", base) else "s")
        past = base + "d" if base.endswith("e") else doubled + "ed"
    gerund = re.sub(r"ie$", "y", base) if base.endswith("ie") else re.sub(r"(?<!e)e$", "", doubled)
    past = irregular[0] if irregular else past
    return EnglishVerb(base, (base, third, base), (past,) * 3, irregular[-1] if irregular else past, gerund + "ing")


def german_verb(forms: str, first: str = "", preterite: str = "") -> GermanVerb:
    """
    Make a verb from infinitive, third person and participle: "an|rufen ruft angerufen" with a separable prefix, "gehen
    geht ist gegangen" with the auxiliary sein. `first` is an irregular form for ich. `preterite` is that of ich; if
    empty, the verb gets none.
    """
    infinitive, third, *auxiliary, participle = forms.split()
    prefix, _, stem = infinitive.rpartition("|")
    plural = preterite + ("n" if preterite.endswith("e") else "en")
    return GermanVerb(
        prefix + stem,
        f"{prefix}zu{stem}" if prefix else f"zu {stem}",
        (first or re.sub(r"n$", "", stem), third, stem),
        (preterite, preterite, plural) if preterite else None,
        participle,
        "sein" if auxiliary else "haben",
        prefix,
    )


def make_verb(
    english: str, german: str, objects: str = "", *, by: str = "person", preposition: str = "", **options
) -> Verb:
    first, preterite = options.pop("first", ""), options.pop("preterite", "")
    if preposition:
        options["preposition"] = tuple(preposition.split("/"))
    forms = english_verb(english), german_verb(german, first, preterite)
    return Verb(*forms, kinds_of(by), kinds_of(objects), **options)


def noun_from(line: str) -> Noun:
    english, german, kinds = (part.split() for part in line.split("|"))
    article, word, *plural = german
    regular = re.sub(r"([^aeiou])y$", r"\1ie", english[0])
    regular += "es" if re.search(r"(s|x|ch|sh|to)$", regular) else "s"
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    return Noun(english[0], (english[1:] or [regular])[0], word, "".join(plural), gender, frozenset(kinds))


def adjective_from(line: str) -> Adjective:
    (english, *_), german, kinds = (part.split() for part in line.split("|"))
    return Adjective(english, german[0], german[-1], frozenset(kinds))


def written(text: str, mark: str) -> str:
    """Return a sentence with a capital letter and the final `mark`, without repeated, leading or trailing commas."""
    text = re.sub(r"( ?,)+", ",", text).strip(" ,")
    return text[0].upper() + text[1:] + mark
