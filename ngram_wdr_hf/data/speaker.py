"""Random trees of meaning."""

import random
from collections.abc import Set
from dataclasses import replace

from ..data import lexicon, meaning, words
from .meaning import Clause, Gap, NounPhrase, Phrase
from .words import DATIVE, FUTURE, HABIT, PAST, PRESENT


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
