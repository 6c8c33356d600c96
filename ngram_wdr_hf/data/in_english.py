"""English sentences from trees of meaning."""

from ..data import lexicon, meaning, words
from .meaning import Clause, Gap, NounPhrase, Phrase
from .words import DATIVE, NOMINATIVE, PAST, PRESENT, join, written


def english(sentence: meaning.Sentence) -> str:
    """Return the sentence in English."""
    main = english_clause(sentence.main, inverted=sentence.question)
    if sentence.question:
        return written(join(sentence.asks and sentence.asks.english, main), "?")
    if not sentence.linker:
        return written(main, ".")
    order = english_infinitive if sentence.linker.order == "infinitive" else english_clause
    second = join(sentence.linker.english, order(sentence.second))
    return written(f"{second}, {main}" if sentence.linker_first else f"{main} {second}", ".")


def english_clause(clause: Clause, inverted: bool = False) -> str:
    auxiliary, verb = english_verbs(clause, inverted)
    subject, adverb = english_phrase(clause.subject, NOMINATIVE), clause.adverb
    front = {"adverb": adverb and adverb.english, "place": english_place(clause.place)}.get(clause.front)
    start = (auxiliary, subject) if inverted else (subject, auxiliary)
    middle = adverb.english if adverb and adverb.middle else ""
    negation = "not" if clause.negated else ""
    return join(front, *start, negation, middle, verb, english_rest(clause)).replace("can not", "cannot")


def english_infinitive(clause: Clause) -> str:
    return join(clause.verb.english.base, english_rest(clause))


def english_verbs(clause: Clause, inverted: bool) -> tuple[str, str]:
    """
    Return the auxiliary (or finite "be") and the rest of the verb; either may be empty. `inverted` asks for an
    auxiliary to put before the subject, as in questions.
    """
    verb, modal, agreement = clause.verb.english, clause.modal, clause.subject.agreement
    if modal and isinstance(modal.english, str):
        return modal.english, verb.base
    tail = f"{modal.link} {verb.base}" if modal else ""
    verb = modal.english if modal else verb
    forms = verb.past if clause.tense == PAST else verb.present
    if verb is lexicon.BE.english:
        return forms[agreement], tail
    if clause.tense == words.PERFECT:
        return lexicon.HAVE.present[agreement], verb.participle
    if clause.tense == PRESENT and not modal and not clause.verb.stative:
        return lexicon.BE.english.present[agreement], verb.gerund
    if clause.negated or inverted:
        helper = lexicon.DO.past if clause.tense == PAST else lexicon.DO.present
        return helper[agreement], join(verb.base, tail)
    return "", join(forms[agreement], tail)


def english_rest(clause: Clause) -> str:
    """
    Return everything after the verb: objects, predicate, manner, goal, place and time, unless they open the clause.
    """
    adverb = clause.adverb
    return join(
        english_objects(clause),
        "very" if clause.very else "",
        clause.predicate and clause.predicate.english,
        clause.manner and clause.manner.english,
        english_place(clause.goal),
        english_place(clause.place) if clause.front != "place" else "",
        adverb.english if adverb and not adverb.middle and clause.front != "adverb" else "",
    )


def english_objects(clause: Clause) -> str:
    verb, thing = clause.verb, english_phrase(clause.object, words.ACCUSATIVE)
    if verb.receiver:
        receiver = english_phrase(clause.receiver, DATIVE)
        return join(thing, "to", receiver) if verb.receiver == "to" else join(receiver, thing)
    if type(clause.object) is words.Pronoun and verb.particle:
        return f"{thing} {verb.particle}"
    return join(verb.particle, verb.preposition[0], thing)


def english_place(place: meaning.Place | None) -> str:
    return f"{place.preposition.english} {english_phrase(place.phrase, DATIVE)}" if place else ""


def english_phrase(phrase: Phrase | None, case: str) -> str:
    if not phrase or isinstance(phrase, Gap):
        return ""
    if isinstance(phrase, words.Pronoun):
        return phrase.english if case == NOMINATIVE else phrase.english_object
    noun = phrase.noun.english_plural if phrase.plural else phrase.noun.english
    article = phrase.determiner.english_plural if phrase.plural else phrase.determiner.english
    text = join(phrase.adjective and phrase.adjective.english, noun, english_relative(phrase))
    return join("an" if article == "a" and text[0] in "aeiou" else article, text)


def english_relative(phrase: NounPhrase) -> str:
    if not phrase.relative:
        return ""
    who = "who" if isinstance(phrase.relative.subject, Gap) else "whom"
    return join(who if "person" in phrase.noun.kinds else "that", english_clause(phrase.relative))
