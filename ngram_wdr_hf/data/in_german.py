"""German sentences from trees of meaning."""

from dataclasses import replace

from ..data import lexicon, meaning, words
from .meaning import Clause, Gap, NounPhrase, Phrase
from .words import DATIVE, NOMINATIVE, PAST, join, written


def german(sentence: meaning.Sentence) -> str:
    """Return the sentence in German."""
    if sentence.question:
        return written(german_main(sentence.main, sentence.asks.german if sentence.asks else ""), "?")
    if not sentence.linker:
        return written(german_main(sentence.main), ".")
    order = {"final": german_final, "main": german_main, "infinitive": german_infinitive}[sentence.linker.order]
    second = join(sentence.linker.german, order(sentence.second))
    if sentence.linker_first:
        return written(german_main(sentence.main, opening=f"{second},"), ".")
    return written(join(german_main(sentence.main), "" if order is german_main else ",", second), ".")


def german_main(clause: Clause, opening: str | None = None) -> str:
    """
    Return a main clause, with the finite verb in second position. `opening` comes before it; `None` means the part
    named by `clause.front`, or else the subject. An empty `opening` puts the verb first, as in yes-no questions.
    """
    finite, last = german_verbs(clause, verb_final=False)
    if opening is None and clause.front:
        opening = clause.adverb.german if clause.front == "adverb" else clause.place.german()
    subject = german_subject(clause)
    first, then = (subject, "") if opening is None else (opening, subject)
    return join(first, finite, german_middle(clause, then), last, german_relative(clause.object))


def german_final(clause: Clause) -> str:
    """Return a subordinate clause, with the finite verb last; only a relative clause of the object follows it."""
    finite, last = german_verbs(clause, verb_final=True)
    return join(german_middle(clause, german_subject(clause)), last, finite, german_relative(clause.object))


def german_subject(clause: Clause) -> str:
    return join(clause.subject.german(clause.verb.subject_case), german_relative(clause.subject))


def german_infinitive(clause: Clause) -> str:
    return join(german_middle(clause), clause.verb.german.zu_infinitive)


def german_verbs(clause: Clause, verb_final: bool) -> tuple[str, str]:
    """
    Return the finite verb and the verb parts at the end of the clause: infinitive, participle, separable prefix, or an
    empty string. With `verb_final`, the prefix is part of the finite verb.
    """
    modal = clause.modal and clause.modal.german
    verb = modal or clause.verb.german
    nominative = clause.subject if clause.verb.subject_case == NOMINATIVE else clause.object
    if clause.tense in (PAST, words.PERFECT) and not verb.preterite:
        helper = lexicon.BE.german if verb.auxiliary == "sein" else lexicon.HABEN
        return helper.present[nominative.agreement], verb.participle
    finite = (verb.preterite if clause.tense == PAST else verb.present)[nominative.agreement]
    tail = clause.verb.german.infinitive if modal else ""
    return (verb.prefix + finite, tail) if verb_final else (finite, tail or verb.prefix)


def german_middle(clause: Clause, subject: str = "") -> str:
    """
    Return what precedes the last verbs: the subject unless empty, objects, negation, time, manner, place, predicate
    and goal. Of the objects, pronouns come first, then definite phrases, then indefinite ones.
    """
    verb, adverb = clause.verb, clause.adverb
    objects = [(clause.receiver, DATIVE), (None if verb.preposition[1] else clause.object, verb.case)]
    objects = [(phrase, case) for phrase, case in objects if phrase]
    pronouns = [phrase.german(case) for phrase, case in objects if type(phrase) is words.Pronoun]
    known = [phrase.german(case) for phrase, case in objects if phrase.definite and type(phrase) is not words.Pronoun]
    new = [(phrase, case) for phrase, case in objects if not phrase.definite]
    if clause.negated and new:
        new[-1] = (replace(new[-1][0], determiner=lexicon.NO), new[-1][1])
    # Pronouns precede an indefinite subject, except sie: jetzt sieht ihn ein Mann, jetzt sieht ein Mann sie.
    subject_first = clause.subject.definite or "sie" in pronouns
    negation = "nicht" if clause.negated and not new else ""
    when = adverb.german if adverb and clause.front != "adverb" else ""
    governed = words.contracted(verb.preposition[1], clause.object.german(verb.case)) if verb.preposition[1] else ""
    late = negation or (adverb and adverb.late)
    return join(
        *((subject, *pronouns) if subject_first else (*pronouns, subject)),
        "" if late else when,
        *known,
        when if late else "",
        negation,
        lexicon.GERN if clause.modal is lexicon.LIKE_TO else "",
        clause.manner and clause.manner.german,
        clause.place.german() if clause.place and clause.front != "place" else "",
        *(phrase.german(case) for phrase, case in new),
        governed,
        "sehr" if clause.very else "",
        clause.predicate and clause.predicate.german,
        clause.goal and clause.goal.german(),
    )


def german_relative(phrase: Phrase | None) -> str:
    """Return the relative clause of a phrase between commas; an empty string if it has none."""
    if not isinstance(phrase, NounPhrase) or not phrase.relative:
        return ""
    clause, verb = phrase.relative, phrase.relative.verb
    is_subject = isinstance(clause.subject, Gap)
    case, preposition = (verb.subject_case, "") if is_subject else (verb.case, verb.preposition[1])
    pronoun = words.relative_pronoun(phrase.noun, case, phrase.plural)
    return join(",", preposition, pronoun, german_final(clause), ",")
