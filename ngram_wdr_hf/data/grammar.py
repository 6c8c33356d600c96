"""A small synchronous grammar that generates English sentences with their German translations.

A `Speaker` draws a random tree of meaning (`Sentence`, `Clause`, `NounPhrase`). The functions `english_*` and
`german_*` render it in the two languages.
"""

import random
import re
from collections.abc import Set
from dataclasses import replace

from datasets import Dataset, Features, Value

from ..data import lexicon, meaning, words
from .errors import InputError
from .meaning import Clause, Gap, NounPhrase, Phrase
from .words import DATIVE, FUTURE, HABIT, NOMINATIVE, PAST, PRESENT, join

NUM_PAIRS = {"train": 12_000, "validation": 300, "test": 500}
MOST_PAIRS = 1_000_000
FEWEST_WORDS, MOST_WORDS = 4, 22


def _written(text: str, mark: str) -> str:
    """Return a sentence with a capital letter and the final `mark`, without repeated, leading or trailing commas."""
    text = re.sub(r"( ?,)+", ",", text).strip(" ,")
    return text[0].upper() + text[1:] + mark


def english(sentence: meaning.Sentence) -> str:
    """Return the sentence in English."""
    main = english_clause(sentence.main, inverted=sentence.question)
    if sentence.question:
        return _written(join(sentence.asks and sentence.asks.english, main), "?")
    if not sentence.linker:
        return _written(main, ".")
    order = english_infinitive if sentence.linker.order == "infinitive" else english_clause
    second = join(sentence.linker.english, order(sentence.second))
    return _written(f"{second}, {main}" if sentence.linker_first else f"{main} {second}", ".")


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


def german(sentence: meaning.Sentence) -> str:
    """Return the sentence in German."""
    if sentence.question:
        return _written(german_main(sentence.main, sentence.asks.german if sentence.asks else ""), "?")
    if not sentence.linker:
        return _written(german_main(sentence.main), ".")
    order = {"final": german_final, "main": german_main, "infinitive": german_infinitive}[sentence.linker.order]
    second = join(sentence.linker.german, order(sentence.second))
    if sentence.linker_first:
        return _written(german_main(sentence.main, opening=f"{second},"), ".")
    return _written(join(german_main(sentence.main), "" if order is german_main else ",", second), ".")


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


class Speaker:
    """
    A generator of random sentences, drawn from `rng`. `named` collects the nouns, names and pronouns of a sentence,
    and repeats are avoided; pronouns may be repeated in another clause.
    """

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.named: set[str] = set()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sentence(self) -> meaning.Sentence:
        self.named.clear()
        if self.chance(0.45):
            return meaning.Sentence(self.clause(front=True, relative=True))
        return self.rng.choice([self.question, self.thought, self.infinitive, self.two_clauses])()

    def question(self) -> meaning.Sentence:
        asks = self.rng.choice([None, None, None, lexicon.WHY, lexicon.WHERE, lexicon.WHEN])
        if asks is lexicon.WHERE:
            verbs = [verb for verb in lexicon.VERBS if lexicon.IN in verb.places]
            clause = self.clause(verbs=verbs, without="negation place")
        elif asks is lexicon.WHEN:
            clause = self.clause({PAST, FUTURE}, acts=True, without="negation adverb liking")
        else:
            clause = self.clause(without="" if asks else "negation")
        return meaning.Sentence(clause, question=True, asks=asks)

    def thought(self) -> meaning.Sentence:
        """
        Return a random sentence about what is said, known, thought or believed, like "She said that ..." or "I do not
        know whether ...".
        """
        main = self.clause(verbs=lexicon.THAT_VERBS, without="negation")
        self.named -= lexicon.PRONOUN_WORDS
        second = self.clause({PAST} if main.tense == PAST else words.ALL_TIMES, relative=True)
        if main.verb is lexicon.KNOW and main.subject.definite and self.chance(0.5):
            return meaning.Sentence(replace(main, negated=True), lexicon.WHETHER, second)
        return meaning.Sentence(main, lexicon.THAT, second)

    def infinitive(self) -> meaning.Sentence:
        if self.chance(0.5):
            linker, main = lexicon.TO_DO, self.clause(verbs=lexicon.TO_VERBS, without="negation modal")
            if main.adverb and not main.adverb.middle:
                main = replace(main, front="adverb")
        else:
            verbs = [verb for verb in lexicon.VERBS if verb.goals and not verb.objects]
            linker, main = lexicon.IN_ORDER_TO, self.clause(verbs=verbs, front=True, without="negation")
        verbs = meaning.verbs_of(meaning.phrase_kinds(main.subject), frozenset(), frozenset({PRESENT}), acts=True)
        verbs = [verb for verb in verbs if not verb.goals and (verb.objects or linker is lexicon.TO_DO)]
        second = self.clause({PRESENT}, verbs, main.subject, without="negation adverb modal")
        return meaning.Sentence(main, linker, second)

    def two_clauses(self) -> meaning.Sentence:
        linker = self.rng.choice(
            [lexicon.BECAUSE, lexicon.ALTHOUGH, lexicon.IF, lexicon.WHILE, lexicon.AND, lexicon.BUT]
        )
        first = linker.order == "final" and self.chance(0.4)
        if linker is lexicon.IF:
            times = {FUTURE}, {PRESENT}
        elif linker is lexicon.WHILE or self.chance(0.5):
            times = {PRESENT}, {PRESENT}
        else:
            times = self.rng.choice([({PAST}, {PAST}), ({PRESENT, FUTURE}, {PRESENT, words.PERFECT})])
        options = {"acts": linker is lexicon.WHILE, "without": "negation" if linker is lexicon.WHILE else ""}
        main = self.clause(times[0], front=not first, **options)
        self.named -= lexicon.PRONOUN_WORDS
        return meaning.Sentence(main, linker, self.clause(times[1], **options), linker_first=first)

    def clause(
        self,
        times: Set[str] = words.ALL_TIMES,
        verbs: list[words.Verb] | None = None,
        subject: Phrase | None = None,
        thing: Gap | None = None,
        acts: bool = False,
        front: bool = False,
        relative: bool = False,
        without: str = "",
    ) -> Clause:
        """
        Return a random clause in one of `times`. `verbs`, `subject` and `thing` (the object) are drawn at random
        unless given. With `acts`, the verb is a deliberate action. The clause may open with its adverb or place if
        `front`, and may have a relative clause if `relative`. `without` names the parts to leave out, separated by
        spaces: negation, modal, liking, adverb, place.
        """
        kinds = meaning.phrase_kinds(subject), meaning.phrase_kinds(thing)
        verb = self.rng.choice(verbs or meaning.verbs_of(*kinds, frozenset(times), acts))
        clause = Clause(subject or self.subject(verb), verb)
        clause = self.with_time(clause, times, without)
        clause = self.with_objects(clause, thing)
        clause = self.with_circumstances(clause, without)
        clause = self.with_front(clause) if front else clause
        return self.with_relative(clause) if relative and self.chance(0.35) else clause

    def with_time(self, clause: Clause, times: Set[str], without: str) -> Clause:
        """Return the clause with a random tense of `times`, and at random a modal verb and a negation."""
        verb, modal = clause.verb, None
        tenses = [tense for tense in verb.tenses if tense in times]
        if FUTURE in times and not verb.stative and "modal" not in without and (not tenses or self.chance(0.3)):
            modals = [lexicon.WILL]
            if "person" in meaning.phrase_kinds(clause.subject) and verb.deliberate:
                modals += [*lexicon.MODALS, *[lexicon.LIKE_TO] * (verb.pastime and "liking" not in without)]
            modal = self.rng.choice(modals)
            tenses = [tense for tense in modal.tenses if tense == PRESENT or tense in times]
        tense = self.rng.choice(tenses)
        may_negate = "negation" not in without and tense != HABIT and clause.subject.definite
        negated = may_negate and (not modal or modal.negated) and self.chance(0.2)
        return replace(clause, tense=tense, modal=modal, negated=negated)

    def with_objects(self, clause: Clause, thing: Gap | None) -> Clause:
        verb, receiver = clause.verb, None
        if verb is lexicon.BE:
            predicate = self.rng.choice(meaning.adjectives_of(meaning.phrase_kinds(clause.subject)))
            return replace(clause, predicate=predicate, very=not clause.negated and self.chance(0.3))
        if verb.objects and not thing:
            likes = clause.modal is lexicon.LIKE_TO
            definite = False if likes else (clause.negated and verb.case == DATIVE) or verb.definite
            thing = self.phrase(verb.objects, definite, counted=not clause.negated and not likes)
            if likes and thing.noun.german_plural:
                thing = replace(thing, determiner=lexicon.NONE, plural=True)
        if verb.receiver:
            receiver = self.phrase(words.PERSON, thing.definite or clause.negated or self.chance(0.8))
        return replace(clause, object=thing, receiver=receiver)

    def with_circumstances(self, clause: Clause, without: str) -> Clause:
        """Return the clause with its verb's goal, and at random a place, a manner and an adverb of time."""
        verb, place, manner, adverb = clause.verb, None, None, None
        time = FUTURE if clause.modal and clause.tense == PRESENT else clause.tense
        lasts = verb.stative and clause.tense == PRESENT
        goal = self.place(verb.goals) if verb.goals else None
        if verb.places and "place" not in without and (verb.needs_place or (not lasts and self.chance(0.4))):
            place = self.place(verb.places)
        if verb.manners and not (place or clause.negated or clause.modal) and self.chance(0.3):
            manner = self.rng.choice(verb.manners)
        may_have_adverb = "adverb" not in without and not (verb.stative and (lasts or not verb.places))
        if time == HABIT or (may_have_adverb and clause.modal is not lexicon.LIKE_TO and self.chance(0.5)):
            adverb = self.rng.choice(meaning.adverbs_of(time, clause.negated))
        return replace(clause, place=place, goal=goal, manner=manner, adverb=adverb)

    def with_front(self, clause: Clause) -> Clause:
        fronts = ["adverb"] if clause.adverb and not clause.adverb.middle else []
        kept = clause.negated or clause.modal or clause.verb.stative
        fronts += ["place"] if clause.place and clause.place.preposition.local and not kept else []
        return replace(clause, front=self.rng.choice(fronts)) if fronts and self.chance(0.5) else clause

    def with_relative(self, clause: Clause) -> Clause:
        """
        Return the clause with a relative clause on an object at its end or a subject at its start; unchanged if there
        is no such phrase.
        """
        place = clause.place and clause.front != "place"
        adverb = clause.adverb and not clause.adverb.middle and clause.front != "adverb"
        followed = place or adverb or clause.goal or clause.manner or clause.verb.receiver == "to"
        first = not clause.front and not (clause.adverb and clause.adverb.middle)
        roles = [*["object"] * (not followed), *["subject"] * first]
        for role in self.rng.sample(roles, len(roles)):
            phrase = getattr(clause, role)
            if isinstance(phrase, NounPhrase) and phrase.determiner in (lexicon.THE, lexicon.A, lexicon.EVERY):
                return replace(clause, **{role: replace(phrase, relative=self.relative(phrase))})
        return clause

    def relative(self, phrase: NounPhrase) -> Clause:
        gap, kinds = Gap(phrase.noun, plural=phrase.plural), phrase.noun.kinds
        acts = self.chance(0.5 if "person" in kinds else 0.2) and meaning.verbs_of(kinds, frozenset())
        return self.clause(subject=gap) if acts else self.clause(thing=gap)

    def place(self, prepositions: tuple[words.Preposition, ...]) -> meaning.Place:
        preposition = self.rng.choice(prepositions)
        phrase = self.phrase(preposition.kinds, self.chance(0.85), plurals=not preposition.local)
        return meaning.Place(preposition, phrase)

    def subject(self, verb: words.Verb) -> Phrase:
        subject = self.phrase(verb.subjects, verb is lexicon.BE or self.chance(0.8))
        if isinstance(subject, NounPhrase) and verb is lexicon.BE:
            return replace(subject, adjective=None)
        if isinstance(subject, NounPhrase) and subject.determiner is lexicon.A and self.chance(0.3):
            return replace(subject, determiner=lexicon.EVERY)
        return subject

    def phrase(self, kinds: Set[str], definite: bool | None = None, counted=True, plurals=True) -> Phrase:
        """
        Return a random noun phrase, pronoun or name of one of `kinds`. `definite=None` decides at random. `counted`
        allows numbers, `plurals` allows plurals.
        """
        definite = self.chance(0.6) if definite is None else definite
        if "person" in kinds and definite and self.chance(0.4):
            return self.pronoun_or_name()
        nouns = [noun for noun in meaning.nouns_of(kinds) if definite or "family" not in noun.kinds]
        noun = self.rng.choice([noun for noun in nouns if noun.english not in self.named] or nouns)
        self.named.add(noun.english)
        plural = plurals and noun.german_plural != "" and self.chance(0.25)
        adjective = self.rng.choice(meaning.adjectives_of(noun.kinds) or [None]) if self.chance(0.35) else None
        return NounPhrase(noun, self.determiner(noun, definite, plural, counted), adjective, plural)

    def determiner(self, noun: words.Noun, definite: bool, plural: bool, counted: bool) -> words.Determiner:
        if "family" in noun.kinds:
            return self.rng.choice(lexicon.POSSESSIVES)
        if definite:
            owners = lexicon.POSSESSIVES if noun.kinds & words.OWNED else []
            return self.rng.choice([lexicon.THIS, *[lexicon.THE] * 7, *owners])
        if plural:
            people = counted and "person" in noun.kinds
            return self.rng.choice(
                lexicon.NUMBERS if people else [lexicon.NONE, lexicon.NONE, *lexicon.NUMBERS * counted]
            )
        return lexicon.A if noun.german_plural else lexicon.NONE

    def pronoun_or_name(self) -> words.Pronoun:
        """
        Return a random pronoun or name that is new in the sentence, any name if none is left. "I" and "we" exclude
        each other.
        """
        first = not self.named.isdisjoint({"I", "we"})
        entries = lexicon.PRONOUNS if self.chance(0.65) else lexicon.NAMES
        free = [entry for entry in entries if entry.english not in self.named and not (first and entry.person == 1)]
        chosen = self.rng.choice(free or lexicon.NAMES)
        self.named.add(chosen.english)
        return chosen


def english_german(num_pairs: dict[str, int] | None = None, seed: int = 0) -> dict[str, Dataset]:
    """
    Return splits of English sentences (`source`) and German translations (`target`). No sentence of either language
    occurs twice, within a split or across splits.

    Args:
        num_pairs (`dict[str, int]`, *optional*): Number of pairs per split, by default 12,000 for `train`, 300 for
            `validation`, 500 for `test`.
        seed (`int`, *optional*, defaults to 0): The same seed gives the same pairs.
    """
    num_pairs = NUM_PAIRS if num_pairs is None else num_pairs
    if min(num_pairs.values(), default=0) < 0 or sum(num_pairs.values()) > MOST_PAIRS:
        sizes = ", ".join(f"{size:,} for {split}" for split, size in num_pairs.items())
        raise InputError(f"`num_pairs` must not be negative, and at most {MOST_PAIRS:,} in all, got {sizes}.")
    speaker, seen, splits = Speaker(random.Random(seed)), set(), {}
    features = Features({"source": Value("string"), "target": Value("string")})
    # Last split first, so that the test set does not depend on the size of the training set.
    for split, size in reversed(num_pairs.items()):
        pairs = [_new_pair(speaker, seen) for _ in range(size)]
        splits[split] = Dataset.from_dict({name: [pair[name] for pair in pairs] for name in features}, features)
    return {split: splits[split] for split in num_pairs}


def _new_pair(speaker: Speaker, seen: set[str]) -> dict[str, str]:
    while True:
        sentence = speaker.sentence()
        pair = {"source": english(sentence), "target": german(sentence)}
        if FEWEST_WORDS <= len(pair["source"].split()) <= MOST_WORDS and seen.isdisjoint(pair.values()):
            seen.update(pair.values())
            return pair
