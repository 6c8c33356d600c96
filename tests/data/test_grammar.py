"""English and German renderings of meanings, and random sentences of the grammar."""

import random

import pytest

from ngram_wdr_hf.data import lexicon, meaning
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.grammar import english_german
from ngram_wdr_hf.data.in_english import english
from ngram_wdr_hf.data.in_german import german
from ngram_wdr_hf.data.meaning import Clause, Gap, NounPhrase, Place, Sentence
from ngram_wdr_hf.data.speaker import Speaker
from ngram_wdr_hf.data.words import ACCUSATIVE, DATIVE, HABIT, NOMINATIVE, PAST, PERFECT
from tests.support.errors import raises_naming

NOUNS = {noun.english: noun for noun in lexicon.NOUNS}
ADJECTIVES = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
ADVERBS = {adverb.english: adverb for adverb in lexicon.ADVERBS}
VERBS = {verb.german.infinitive: verb for verb in [*lexicon.VERBS, *lexicon.THAT_VERBS, *lexicon.TO_VERBS]}
ME, HE, SHE, US, THEY = lexicon.PRONOUNS
ANNA = lexicon.NAMES[0]
CAN, MUST, SHOULD, WANT, HAVE_TO, MAY = lexicon.MODALS
THE, A, MY, NONE = lexicon.THE, lexicon.A, lexicon.MY, lexicon.NONE


def np(text, determiner=THE, plural=False, **more):
    """Make a noun phrase from "man" or "old man"."""
    *adjective, noun = text.split()
    return NounPhrase(NOUNS[noun], determiner, ADJECTIVES[adjective[0]] if adjective else None, plural, **more)


def does(subject, verb, thing=None, /, **more):
    more["adverb"] = ADVERBS[more["adverb"]] if "adverb" in more else None
    return Clause(subject, VERBS[verb], thing, **more)


def gap(noun, plural=False):
    return Gap(NOUNS[noun], plural=plural)


def is_(subject, adjective, **more):
    return Clause(subject, lexicon.BE, predicate=ADJECTIVES[adjective], **more)


def says(clause, **more):
    return Sentence(clause, **more)


def at(preposition, phrase):
    return Place(preposition, phrase)


MAN, WOMAN, CHILD, BOOK, BOY = np("man"), np("woman"), np("child"), np("book"), np("boy")
READS = does(np("old man"), "lesen", BOOK, adverb="today")
GARDEN = at(lexicon.IN, np("garden"))

PAIRS = [
    # Cases, and the articles and adjectives that show them.
    (says(does(MAN, "lesen", np("new letter", A))),
     "The man is reading a new letter.", "Der Mann liest einen neuen Brief."),
    (says(does(ME, "haben", np("old cat", A))), "I have an old cat.", "Ich habe eine alte Katze."),
    (says(does(US, "trinken", np("hot coffee", NONE))), "We are drinking hot coffee.", "Wir trinken heißen Kaffee."),
    (says(does(MAN, "helfen", np("small dog", MY, True))),
     "The man is helping my small dogs.", "Der Mann hilft meinen kleinen Hunden."),
    (says(does(WOMAN, "anrufen", BOY)), "The woman is calling the boy.", "Die Frau ruft den Jungen an."),
    (says(does(THEY, "vertrauen", np("student", lexicon.MANY, True))),
     "They trust many students.", "Sie vertrauen vielen Studenten."),
    (says(is_(np("car", lexicon.OUR), "expensive", very=True)),
     "Our car is very expensive.", "Unser Auto ist sehr teuer."),
    (says(does(np("girl", lexicon.EVERY), "kaufen", np("expensive hat", A, False), tense=PAST)),
     "Every girl bought an expensive hat.", "Jedes Mädchen hat einen teuren Hut gekauft."),
    # The verb comes second.
    (says(does(WOMAN, "lesen", BOOK, adverb="today", front="adverb")),
     "Today the woman is reading the book.", "Heute liest die Frau das Buch."),
    (says(does(SHE, "arbeiten", place=GARDEN, front="place")),
     "In the garden she is working.", "Im Garten arbeitet sie."),
    (says(does(np("dog", A), "folgen", SHE, adverb="yesterday", tense=PAST, front="adverb")),
     "Yesterday a dog followed her.", "Gestern ist ihr ein Hund gefolgt."),
    (says(does(ME, "gehen", goal=at(lexicon.TO, np("school")), adverb="every day", tense=HABIT)),
     "I go to the school every day.", "Ich gehe jeden Tag zur Schule."),
    (says(does(np("king", lexicon.MANY, True), "einladen", THEY, adverb="now", front="adverb")),
     "Now many kings are inviting them.", "Jetzt laden viele Könige sie ein."),
    # Subordinate clauses.
    (says(does(ME, "wissen"), linker=lexicon.THAT, second=READS),
     "I know that the old man is reading the book today.", "Ich weiß, dass der alte Mann heute das Buch liest."),
    (says(does(ME, "wissen", negated=True), linker=lexicon.WHETHER, second=does(SHE, "ankommen", tense=PAST)),
     "I do not know whether she arrived.", "Ich weiß nicht, ob sie angekommen ist."),
    (says(does(HE, "schlafen"), linker=lexicon.BECAUSE, second=is_(HE, "tired")),
     "He is sleeping because he is tired.", "Er schläft, weil er müde ist."),
    (says(does(MAN, "anrufen", WOMAN, modal=lexicon.WILL), linker=lexicon.IF,
          second=does(SHE, "aufwachen"), linker_first=True),
     "If she is waking up, the man will call the woman.", "Wenn sie aufwacht, wird der Mann die Frau anrufen."),
    (says(does(HE, "lachen", tense=PAST), linker=lexicon.ALTHOUGH, second=is_(ME, "sick", tense=PAST)),
     "He laughed although I was sick.", "Er hat gelacht, obwohl ich krank war."),
    (says(does(HE, "schlafen"), linker=lexicon.BUT, second=does(SHE, "arbeiten")),
     "He is sleeping, but she is working.", "Er schläft, aber sie arbeitet."),
    (says(does(HE, "schlafen"), linker=lexicon.AND, second=does(SHE, "arbeiten")),
     "He is sleeping and she is working.", "Er schläft und sie arbeitet."),
    # Relative clauses.
    (says(does(np("man", relative=does(WOMAN, "sehen", gap("man"))), "schlafen")),
     "The man whom the woman sees is sleeping.", "Der Mann, den die Frau sieht, schläft."),
    (says(does(np("woman", relative=does(gap("woman"), "singen")), "kennen", ME)),
     "The woman who is singing knows me.", "Die Frau, die singt, kennt mich."),
    (says(does(ME, "kennen", np("child", plural=True, relative=does(HE, "helfen", gap("child", True))))),
     "I know the children whom he is helping.", "Ich kenne die Kinder, denen er hilft."),
    (says(does(ME, "sehen", np("bus", relative=does(SHE, "warten", gap("bus"))), tense=PAST)),
     "I saw the bus that she is waiting for.", "Ich habe den Bus gesehen, auf den sie wartet."),
    (says(does(np("man", relative=does(gap("man"), "gefallen", BOOK)), "lachen")),
     "The man who likes the book is laughing.", "Der Mann, dem das Buch gefällt, lacht."),
    # Separable verbs.
    (says(does(HE, "anrufen", WOMAN, tense=PERFECT)), "He has called the woman.", "Er hat die Frau angerufen."),
    (says(does(HE, "anrufen", WOMAN, modal=CAN)), "He can call the woman.", "Er kann die Frau anrufen."),
    (says(does(ME, "denken"), linker=lexicon.THAT, second=does(HE, "anrufen", WOMAN)),
     "I think that he is calling the woman.", "Ich denke, dass er die Frau anruft."),
    (says(does(HE, "abholen", SHE)), "He is picking her up.", "Er holt sie ab."),
    (says(does(MAN, "abholen", ANNA)), "The man is picking up Anna.", "Der Mann holt Anna ab."),
    # Infinitives.
    (says(does(HE, "versuchen"), linker=lexicon.TO_DO, second=does(HE, "anrufen", SHE)),
     "He is trying to call her.", "Er versucht, sie anzurufen."),
    (says(does(SHE, "anfangen", tense=PAST), linker=lexicon.TO_DO, second=does(SHE, "lesen", BOOK)),
     "She started to read the book.", "Sie hat angefangen, das Buch zu lesen."),
    (says(does(ME, "fahren", goal=at(lexicon.TO, np("station"))), linker=lexicon.IN_ORDER_TO,
          second=does(ME, "abholen", np("brother", MY))),
     "I am driving to the station in order to pick up my brother.",
     "Ich fahre zum Bahnhof, um meinen Bruder abzuholen."),
    # Modal verbs and tenses.
    (says(does(THEY, "schwimmen", tense=PAST)), "They swam.", "Sie sind geschwommen."),
    (says(does(US, "arbeiten", modal=WANT, tense=PAST)), "We wanted to work.", "Wir wollten arbeiten."),
    (says(does(ME, "tanzen", modal=MAY)), "I am allowed to dance.", "Ich darf tanzen."),
    (says(does(HE, "arbeiten", modal=SHOULD, adverb="tomorrow")),
     "He should work tomorrow.", "Er sollte morgen arbeiten."),
    (says(does(SHE, "lesen", np("book", NONE, True), modal=lexicon.LIKE_TO)),
     "She likes to read books.", "Sie liest gern Bücher."),
    (says(does(ME, "denken"), linker=lexicon.THAT, second=does(HE, "arbeiten", modal=MUST)),
     "I think that he must work.", "Ich denke, dass er arbeiten muss."),
    (says(does(HE, "lesen", BOOK, tense=PERFECT, adverb="already")),
     "He has already read the book.", "Er hat das Buch schon gelesen."),
    # Datives, prepositions, two objects.
    (says(does(SHE, "danken", BOY, tense=PAST)), "She thanked the boy.", "Sie hat dem Jungen gedankt."),
    (says(does(ME, "gefallen", np("picture", plural=True))), "I like the pictures.", "Mir gefallen die Bilder."),
    (says(does(CHILD, "schmecken", np("soup"))), "The child likes the soup.", "Dem Kind schmeckt die Suppe."),
    (says(does(HE, "träumen", np("house"))), "He is dreaming of the house.", "Er träumt vom Haus."),
    (says(does(SHE, "warten", HE)), "She is waiting for him.", "Sie wartet auf ihn."),
    (says(does(WOMAN, "geben", np("ball"), receiver=CHILD)),
     "The woman is giving the child the ball.", "Die Frau gibt dem Kind den Ball."),
    (says(does(HE, "erklären", np("plan"), receiver=US, tense=PAST)),
     "He explained the plan to us.", "Er hat uns den Plan erklärt."),
    (says(does(SHE, "vorlesen", np("poem"), receiver=BOY)),
     "She is reading the poem to the boy.", "Sie liest dem Jungen das Gedicht vor."),
    # Places and goals.
    (says(does(BOOK, "liegen", place=at(lexicon.ON, np("table")))),
     "The book is lying on the table.", "Das Buch liegt auf dem Tisch."),
    (says(does(HE, "legen", BOOK, goal=at(lexicon.ONTO, np("table")))),
     "He is putting the book on the table.", "Er legt das Buch auf den Tisch."),
    (says(does(ME, "laufen", goal=at(lexicon.INTO, np("house")), tense=PAST)),
     "I ran into the house.", "Ich bin ins Haus gelaufen."),
    (says(does(SHE, "sitzen", place=at(lexicon.AT, np("lake")))), "She is sitting at the lake.", "Sie sitzt am See."),
    (says(does(HE, "tanzen", place=at(lexicon.WITHOUT, BOY))),
     "He is dancing without the boy.", "Er tanzt ohne den Jungen."),
    (says(does(HE, "kaufen", np("car", A), place=at(lexicon.IN, np("city")), adverb="yesterday", tense=PAST)),
     "He bought a car in the city yesterday.", "Er hat gestern in der Stadt ein Auto gekauft."),
    # Negation.
    (says(does(HE, "kaufen", np("hat", A), negated=True)), "He is not buying a hat.", "Er kauft keinen Hut."),
    (says(does(HE, "lesen", BOOK, negated=True, adverb="today")),
     "He is not reading the book today.", "Er liest das Buch heute nicht."),
    (says(does(HE, "warten", np("bus"), negated=True)),
     "He is not waiting for the bus.", "Er wartet nicht auf den Bus."),
    (says(does(SHE, "einschalten", np("lamp"), negated=True, tense=PAST)),
     "She did not turn on the lamp.", "Sie hat die Lampe nicht eingeschaltet."),
    (says(does(SHE, "kommen", goal=at(lexicon.OUT_OF, np("garden")), negated=True, modal=CAN)),
     "She cannot come out of the garden.", "Sie kann nicht aus dem Garten kommen."),
    (says(does(HE, "arbeiten", negated=True, modal=HAVE_TO)), "He does not have to work.", "Er muss nicht arbeiten."),
    (says(is_(ME, "rich", negated=True)), "I am not rich.", "Ich bin nicht reich."),
    # Questions.
    (says(does(WOMAN, "kennen", HE), question=True), "Does the woman know him?", "Kennt die Frau ihn?"),
    (says(does(HE, "lesen", BOOK, tense=PERFECT), question=True), "Has he read the book?", "Hat er das Buch gelesen?"),
    (says(does(np("actress"), "wohnen"), question=True, asks=lexicon.WHERE),
     "Where does the actress live?", "Wo wohnt die Schauspielerin?"),
    (says(does(np("train"), "ankommen", tense=PAST), question=True, asks=lexicon.WHEN),
     "When did the train arrive?", "Wann ist der Zug angekommen?"),
    (says(does(SHE, "arbeiten", negated=True), question=True, asks=lexicon.WHY),
     "Why is she not working?", "Warum arbeitet sie nicht?"),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "source", "target"), PAIRS, ids=[pair[1] for pair in PAIRS])
def test_pairs(sentence, source, target):
    assert english(sentence) == source
    assert german(sentence) == target


PARADIGM = {
    # The nominative, the accusative and the dative, in the singular and in the plural.
    "car": ("das neue Auto, das neue Auto, dem neuen Auto", "die neuen Autos, die neuen Autos, den neuen Autos",
            "mein neues Auto, mein neues Auto, meinem neuen Auto",
            "meine neuen Autos, meine neuen Autos, meinen neuen Autos",
            "neues Auto, neues Auto, neuem Auto", "neue Autos, neue Autos, neuen Autos"),
    "table": ("der neue Tisch, den neuen Tisch, dem neuen Tisch",
              "die neuen Tische, die neuen Tische, den neuen Tischen",
              "mein neuer Tisch, meinen neuen Tisch, meinem neuen Tisch",
              "meine neuen Tische, meine neuen Tische, meinen neuen Tischen",
              "neuer Tisch, neuen Tisch, neuem Tisch", "neue Tische, neue Tische, neuen Tischen"),
    "lamp": ("die neue Lampe, die neue Lampe, der neuen Lampe", "die neuen Lampen, die neuen Lampen, den neuen Lampen",
             "meine neue Lampe, meine neue Lampe, meiner neuen Lampe",
             "meine neuen Lampen, meine neuen Lampen, meinen neuen Lampen",
             "neue Lampe, neue Lampe, neuer Lampe", "neue Lampen, neue Lampen, neuen Lampen"),
}  # fmt: skip


@pytest.mark.parametrize("noun", PARADIGM)
def test_paradigm(noun):
    forms = [
        ", ".join(np(f"new {noun}", determiner, plural).german(case) for case in (NOMINATIVE, ACCUSATIVE, DATIVE))
        for determiner in (THE, MY, NONE)
        for plural in (False, True)
    ]
    assert forms == list(PARADIGM[noun])


def test_default_sizes_and_disjoint_splits():
    splits = english_german()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12_000, "validation": 300, "test": 500}
    for column in ("source", "target"):
        texts = [text for rows in splits.values() for text in rows[column]]
        assert len(set(texts)) == len(texts)
    lengths = [len(text.split()) for text in splits["train"]["source"]]
    assert min(lengths) >= 4 and max(lengths) <= 22


def test_the_seed_decides():
    sizes = {"train": 200, "test": 50}
    first, again, other = (english_german(sizes, seed) for seed in (1, 1, 2))
    assert {split: rows.to_list() for split, rows in first.items()} == {s: rows.to_list() for s, rows in again.items()}
    assert len(set(first["train"]["source"]) & set(other["train"]["source"])) < 20
    assert english_german({"train": 20, "test": 50}, 1)["test"].to_list() == first["test"].to_list()


def test_one_translation_for_each_source():
    speaker, translations = Speaker(random.Random(3)), {}
    for _ in range(20_000):
        sentence = speaker.sentence()
        target = german(sentence)
        assert translations.setdefault(english(sentence), target) == target


def test_english_words_have_one_meaning_by_their_kinds():
    """Verbs with the same English form have different kinds of subjects or objects."""
    nouns = {verb: (meaning.nouns_of(verb.subjects), meaning.nouns_of(verb.objects)) for verb in lexicon.VERBS}
    english_forms = [
        (verb.english.base, verb.particle, verb.preposition[0], verb.receiver, bool(verb.goals)) for verb in nouns
    ]
    for i, verb in enumerate(nouns):
        for j, other in enumerate(nouns):
            if i < j and english_forms[i] == english_forms[j]:
                shared = [[noun for noun in a if noun in b] for a, b in zip(nouns[verb], nouns[other], strict=True)]
                alike = bool(verb.objects) == bool(other.objects) and all(shared)
                assert not alike, (verb.german.infinitive, other.german.infinitive)


def test_empty_split():
    rows = english_german({"train": 2, "test": 0})["test"]
    assert len(rows) == 0 and rows.column_names == ["source", "target"]


@pytest.mark.parametrize("sizes", [{"train": 999_999, "test": 2}, {"train": -1}])
def test_impossible_numbers_of_pairs(sizes):
    with raises_naming(InputError, "num_pairs", "1,000,000", f"{sizes['train']:,} for train"):
        english_german(sizes)
