"""The words of the English-German grammar.

Every noun has kinds. A verb lists the kinds of its subject and object, an adjective the kinds of its noun: people read
books, but not dogs.
"""

from .words import (
    ACCUSATIVE,
    DATIVE,
    FIRST,
    FUTURE,
    HABIT,
    NOMINATIVE,
    PAST,
    PERFECT,
    PLURAL,
    PRESENT,
    THIRD,
    Adverb,
    Determiner,
    EnglishVerb,
    GermanVerb,
    Linker,
    Modal,
    Name,
    Preposition,
    Pronoun,
    Verb,
    adjective_from,
    english_verb,
    german_verb,
    kinds_of,
    make_verb,
    noun_from,
)

NOUNS = [
    noun_from(line)
    for line in """
man men | der Mann Männer | person grown
woman women | die Frau Frauen | person grown
child children | das Kind Kinder | person
boy | der Junge Jungen | person weak
girl | das Mädchen Mädchen | person
teacher | der Lehrer Lehrer | person grown
doctor | der Arzt Ärzte | person grown
neighbour | der Nachbar Nachbarn | person grown kin weak
friend | der Freund Freunde | person grown kin
brother | der Bruder Brüder | person grown kin family
sister | die Schwester Schwestern | person grown kin family
mother | die Mutter | person grown kin family
father | der Vater | person grown kin family
daughter | die Tochter Töchter | person grown kin family
son | der Sohn Söhne | person grown kin family
aunt | die Tante Tanten | person grown kin family
uncle | der Onkel Onkel | person grown kin family
student | der Student Studenten | person grown weak
policeman policemen | der Polizist Polizisten | person grown weak
colleague | der Kollege Kollegen | person grown kin weak
farmer | der Bauer Bauern | person grown weak
king | der König Könige | person grown
queen | die Königin Königinnen | person grown
guest | der Gast Gäste | person grown
actress | die Schauspielerin Schauspielerinnen | person grown
dog | der Hund Hunde | animal pet
cat | die Katze Katzen | animal pet
horse | das Pferd Pferde | animal
bird | der Vogel Vögel | animal
cow | die Kuh Kühe | animal
bear | der Bär Bären | animal weak
book | das Buch Bücher | object text written present flat
letter | der Brief Briefe | object text written flat awaited
newspaper | die Zeitung Zeitungen | object text flat
novel | der Roman Romane | text written present
article | der Artikel Artikel | text written
poem | das Gedicht Gedichte | text written
apple | der Apfel Äpfel | food fodder
cake | der Kuchen Kuchen | food baked
bread | das Brot | food baked fodder
soup | die Suppe Suppen | food cooked warm
cheese | der Käse | food
egg | das Ei Eier | food cooked
fish | der Fisch | food cooked fodder
potato | die Kartoffel Kartoffeln | food cooked
meat | das Fleisch | food cooked fodder
orange | die Orange Orangen | food
coffee | der Kaffee | drink warm
tea | der Tee | drink warm
milk | die Milch | drink warm
water | das Wasser | drink
wine | der Wein | drink
juice | der Saft | drink
car | das Auto Autos | object vehicle coloured repaired washed dreamt
bicycle | das Fahrrad Fahrräder | object vehicle coloured repaired present
bus | der Bus Busse | vehicle transport awaited coloured
train | der Zug Züge | vehicle transport awaited
clock | die Uhr Uhren | object repaired present
lamp | die Lampe Lampen | object device
radio | das Radio Radios | object device repaired
computer | der Computer Computer | object device repaired present
machine | die Maschine Maschinen | object device repaired
cup | die Tasse Tassen | object vessel washed
glass | das Glas Gläser | object vessel washed
bottle | die Flasche Flaschen | object vessel opened
knife knives | das Messer Messer | object flat washed
key | der Schlüssel Schlüssel | object flat lost
ring | der Ring Ringe | object flat lost present
picture | das Bild Bilder | object painted present
gift | das Geschenk Geschenke | object present carried
ball | der Ball Bälle | object toy present lost
flower | die Blume Blumen | object coloured present painted
tree | der Baum Bäume | painted landmark
ticket | die Fahrkarte Fahrkarten | object flat lost
coat | der Mantel Mäntel | object clothing coloured washed
hat | der Hut Hüte | object clothing coloured
dress | das Kleid Kleider | object clothing coloured washed
shirt | das Hemd Hemden | object clothing coloured washed
bag | die Tasche Taschen | object carried lost coloured opened
suitcase | der Koffer Koffer | object carried lost opened
box | die Kiste Kisten | object carried opened
umbrella | der Regenschirm Regenschirme | object carried lost coloured
door | die Tür Türen | opened coloured at
window | das Fenster Fenster | opened at
table | der Tisch Tische | object surface
chair | der Stuhl Stühle | object surface
bed | das Bett Betten | object surface
shelf shelves | das Regal Regale | object surface
house | das Haus Häuser | place built inside entered landmark dreamt sold home
garden | der Garten Gärten | place inside entered dreamt
kitchen | die Küche Küchen | place built inside entered tidied
room | das Zimmer Zimmer | place built inside entered tidied home
city | die Stadt Städte | place built inside sight known home
village | das Dorf Dörfer | place built inside sight known home
park | der Park Parks | place inside goal
forest | der Wald Wälder | place inside entered
restaurant | das Restaurant Restaurants | place built inside goal landmark known
hotel | das Hotel Hotels | place built inside goal landmark known home
museum | das Museum Museen | place built inside goal landmark sight known
school | die Schule Schulen | place built inside goal landmark known
church | die Kirche Kirchen | place built inside goal landmark sight known
library | die Bibliothek Bibliotheken | place built inside goal landmark sight
hospital | das Krankenhaus Krankenhäuser | place built inside goal landmark
station | der Bahnhof Bahnhöfe | place built at goal landmark
lake | der See Seen | place at goal
river | der Fluss Flüsse | place at goal
beach | der Strand Strände | place at goal
market | der Markt Märkte | place goal
film | der Film Filme | show topic known
programme | die Sendung Sendungen | show topic
story | die Geschichte Geschichten | told topic text known
joke | der Witz Witze | told
song | das Lied Lieder | heard known
problem | das Problem Probleme | idea topic
plan | der Plan Pläne | idea topic
question | die Frage Fragen | idea topic
answer | die Antwort Antworten | idea awaited
journey | die Reise Reisen | journey topic dreamt
""".strip().splitlines()
]

ADJECTIVES = [
    adjective_from(line)
    for line in """
old | alt | grown animal object vehicle built told landmark
young | jung | person animal
small | klein | animal object place opened
big | groß | animal object place opened landmark
tall | groß | person
friendly | freundlich | person
tired | müde müd | person animal
famous | berühmt | person show sight
clever | klug | person animal
rich | reich | person
poor | arm | person
happy | glücklich | person
hungry | hungrig | person animal
sick | krank | person animal
strong | stark | person animal
lazy | faul | person animal
new | neu | object vehicle built text idea show opened
expensive | teuer teur | object present
cheap | billig | object present
beautiful | schön | object place animal heard journey
red | rot | coloured
blue | blau | coloured
green | grün | coloured
black | schwarz | coloured pet
white | weiß | coloured pet
heavy | schwer | carried
fresh | frisch | food
delicious | lecker | food
hot | heiß | warm
cold | kalt | drink
interesting | interessant | text idea show journey
long | lang | text told show journey
important | wichtig | idea
difficult | schwierig | idea
funny | lustig | told show heard
boring | langweilig | text show
modern | modern | built device
dark | dunkel dunkl | entered
""".strip().splitlines()
]


def _pronoun(english: str, german: str, agreement: int, person: int = 3) -> Pronoun:
    nominative, accusative, dative = german.split()
    forms = {NOMINATIVE: nominative, ACCUSATIVE: accusative, DATIVE: dative}
    return Pronoun(*english.split(), forms, agreement, person)


PRONOUNS = [
    _pronoun("I me", "ich mich mir", FIRST, person=1),
    _pronoun("he him", "er ihn ihm", THIRD),
    _pronoun("she her", "sie sie ihr", THIRD),
    _pronoun("we us", "wir uns uns", PLURAL, person=1),
    _pronoun("they them", "sie sie ihnen", PLURAL),
]
PRONOUN_WORDS = {pronoun.english for pronoun in PRONOUNS}
NAMES = [
    Name(name, name, dict.fromkeys((NOMINATIVE, ACCUSATIVE, DATIVE), name), THIRD, 3)
    for name in ("Anna", "Julia", "Maria", "Paul", "Peter", "Thomas")
]

THE = Determiner("the", "the", "d", "der", definite=True)
THIS = Determiner("this", "these", "dies", "dieser", definite=True)
EVERY = Determiner("every", "", "jed", "dieser")
MY = Determiner("my", "my", "mein", "ein", definite=True)
HIS = Determiner("his", "his", "sein", "ein", definite=True)
OUR = Determiner("our", "our", "unser", "ein", definite=True)
THEIR = Determiner("their", "their", "ihr", "ein", definite=True)
A = Determiner("a", "", "ein", "ein")
NO = Determiner("no", "no", "kein", "ein")
NONE = Determiner("", "", "", "fixed", strong=True)
TWO = Determiner("", "two", "zwei", "fixed", strong=True)
THREE = Determiner("", "three", "drei", "fixed", strong=True)
MANY = Determiner("", "many", "viel", "dieser", strong=True)
POSSESSIVES = [MY, HIS, OUR, THEIR]
NUMBERS = [TWO, THREE, MANY]

IN = Preposition("in", "in", DATIVE, kinds_of("inside"))
IN_HOME = Preposition("in", "in", DATIVE, kinds_of("home"))
AT = Preposition("at", "an", DATIVE, kinds_of("at"))
BEHIND = Preposition("behind", "hinter", DATIVE, kinds_of("landmark"))
IN_FRONT_OF = Preposition("in front of", "vor", DATIVE, kinds_of("landmark"))
NEXT_TO = Preposition("next to", "neben", DATIVE, kinds_of("landmark"))
ON = Preposition("on", "auf", DATIVE, kinds_of("surface"))
WITH = Preposition("with", "mit", DATIVE, kinds_of("person"), local=False)
WITHOUT = Preposition("without", "ohne", ACCUSATIVE, kinds_of("person"), local=False)
FOR = Preposition("for", "für", ACCUSATIVE, kinds_of("person"), local=False)
TO = Preposition("to", "zu", DATIVE, kinds_of("goal"))
INTO = Preposition("into", "in", ACCUSATIVE, kinds_of("entered"))
OUT_OF = Preposition("out of", "aus", DATIVE, kinds_of("entered"))
ONTO = Preposition("on", "auf", ACCUSATIVE, kinds_of("surface"))
SOMEWHERE = (IN, IN, AT, BEHIND, IN_FRONT_OF, NEXT_TO)
TOGETHER = (WITH, WITHOUT)
ANYWHERE = SOMEWHERE + TOGETHER

ADVERBS = [
    Adverb("today", "heute", (PRESENT, PERFECT, FUTURE)),
    Adverb("now", "jetzt", (PRESENT,)),
    Adverb("this evening", "heute Abend", (FUTURE,)),
    Adverb("tomorrow", "morgen", (FUTURE, FUTURE)),
    Adverb("on Sunday", "am Sonntag", (FUTURE, PAST)),
    Adverb("next week", "nächste Woche", (FUTURE,)),
    Adverb("every day", "jeden Tag", (HABIT,)),
    Adverb("in summer", "im Sommer", (HABIT,)),
    Adverb("often", "oft", (HABIT,), middle=True),
    Adverb("always", "immer", (HABIT,), middle=True),
    Adverb("sometimes", "manchmal", (HABIT,), middle=True),
    Adverb("never", "nie", (HABIT,), middle=True, late=True),
    Adverb("yesterday", "gestern", (PAST, PAST)),
    Adverb("last week", "letzte Woche", (PAST,)),
    Adverb("two days ago", "vor zwei Tagen", (PAST,)),
    Adverb("already", "schon", (PERFECT,), middle=True, late=True),
]
SLOWLY = Adverb("slowly", "langsam")
QUICKLY = Adverb("quickly", "schnell")
CAREFULLY = Adverb("carefully", "vorsichtig")
QUIETLY = Adverb("quietly", "leise")
LOUDLY = Adverb("loudly", "laut")
PACE, CARE, VOICE = (SLOWLY, QUICKLY), (QUICKLY, CAREFULLY), (LOUDLY, QUIETLY)
WHY, WHERE, WHEN = Adverb("why", "warum"), Adverb("where", "wo"), Adverb("when", "wann")
GERN = "gern"

BE = Verb(
    EnglishVerb("be", ("am", "is", "are"), ("was", "was", "were"), "been", "being"),
    GermanVerb("sein", "zu sein", ("bin", "ist", "sind"), ("war", "war", "waren"), "gewesen", "sein", ""),
    kinds_of("person animal object place food drink text idea show told heard journey"),
    tenses=(PRESENT, PAST),
    stative=True,
)
HABEN = german_verb("haben hat gehabt", preterite="hatte")
WERDEN = german_verb("werden wird ist geworden")
DO, HAVE = english_verb("do did done"), EnglishVerb("have", ("have", "has", "have"), ("had",) * 3, "had", "having")

NOW_ONLY = {"tenses": (PRESENT,), "stative": True}
PERCEIVED = {"tenses": (PRESENT, PAST, PAST), "stative": True}
# Without "is losing", and without "read" or "put", whose present and past look the same.
COMPLETED = {"tenses": (PAST, PAST, PERFECT)}
UNWILLED = {"deliberate": False}
MISHAP = {**UNWILLED, **COMPLETED}
SAME_IN_THE_PAST = {"tenses": (PRESENT, PRESENT, PERFECT)}
EXPERIENCED = {"subject_case": DATIVE, "case": NOMINATIVE, "definite": True, **NOW_ONLY}
LIVING = "person animal"
OBJECTS = kinds_of("object pet")

VERBS = [
    # With an accusative.
    make_verb(
        "see saw seen", "sehen sieht gesehen", "person animal vehicle", by=LIVING, places=SOMEWHERE, **PERCEIVED
    ),
    make_verb("hear heard", "hören hört gehört", "person heard", **PERCEIVED),
    make_verb("know knew known", "kennen kennt gekannt", "person known", definite=True, **NOW_ONLY),
    make_verb("love", "lieben liebt geliebt", "person pet known", definite=True, **NOW_ONLY),
    make_verb("like", "mögen mag gemocht", "person pet", first="mag", definite=True, **NOW_ONLY),
    Verb(HAVE, HABEN, kinds_of("person"), OBJECTS, definite=False, tenses=(PRESENT, PAST), stative=True),
    make_verb("need", "brauchen braucht gebraucht", "object", **NOW_ONLY),
    make_verb("read read", "lesen liest gelesen", "text", places=SOMEWHERE, pastime=True, **SAME_IN_THE_PAST),
    make_verb(
        "write wrote written", "schreiben schreibt geschrieben", "written", places=(*SOMEWHERE, FOR), pastime=True
    ),
    make_verb("buy bought", "kaufen kauft gekauft", "object food drink", places=(IN, FOR, WITH)),
    make_verb("sell sold", "verkaufen verkauft verkauft", "object food sold"),
    make_verb("eat ate eaten", "essen isst gegessen", "food", places=ANYWHERE, manners=PACE, pastime=True),
    make_verb("eat ate eaten", "fressen frisst gefressen", "fodder", by="animal", manners=PACE),
    make_verb("drink drank drunk", "trinken trinkt getrunken", "drink", places=ANYWHERE, manners=PACE, pastime=True),
    make_verb("find found", "finden findet gefunden", "object", places=SOMEWHERE, **COMPLETED),
    make_verb("lose lost", "verlieren verliert verloren", "lost", places=SOMEWHERE, **MISHAP),
    make_verb("forget forgot forgotten", "vergessen vergisst vergessen", "lost carried", definite=True, **MISHAP),
    make_verb("look", "suchen sucht gesucht", "person pet object", preposition="for/"),
    make_verb("visit", "besuchen besucht besucht", "person sight", places=TOGETHER),
    make_verb("meet met", "treffen trifft getroffen", "person", places=SOMEWHERE),
    make_verb("open", "öffnen öffnet geöffnet", "opened", manners=CARE),
    make_verb("close", "schließen schließt geschlossen", "opened", manners=CARE),
    make_verb("repair", "reparieren repariert repariert", "repaired", places=(FOR, WITH), manners=CARE),
    make_verb("wash", "waschen wäscht gewaschen", "washed pet", manners=CARE),
    make_verb("cook", "kochen kocht gekocht", "cooked", places=(IN, FOR, WITH), pastime=True),
    make_verb("bake", "backen backt gebacken", "baked", places=(IN, FOR, WITH), pastime=True),
    make_verb("paint", "malen malt gemalt", "painted", places=(IN, FOR), manners=CARE, pastime=True),
    make_verb("carry", "tragen trägt getragen", "carried", goals=(TO, INTO)),
    make_verb("wear wore worn", "tragen trägt getragen", "clothing"),
    # With a separable prefix.
    make_verb("call", "an|rufen ruft angerufen", "person", definite=True),
    make_verb("invite", "ein|laden lädt eingeladen", "person"),
    make_verb("pick", "ab|holen holt abgeholt", "person", particle="up", definite=True, places=(AT,)),
    make_verb("turn", "ein|schalten schaltet eingeschaltet", "device", particle="on"),
    make_verb("turn", "aus|schalten schaltet ausgeschaltet", "device", particle="off"),
    make_verb("tidy", "auf|räumen räumt aufgeräumt", "tidied", particle="up", manners=(QUICKLY,)),
    make_verb("look", "an|sehen sieht angesehen", "painted object", preposition="at/"),
    make_verb("watch", "an|sehen sieht angesehen", "show", places=(WITH,)),
    make_verb("try", "an|probieren probiert anprobiert", "clothing", particle="on"),
    # With a dative.
    make_verb("help", "helfen hilft geholfen", "person", case=DATIVE, places=(IN,)),
    make_verb("thank", "danken dankt gedankt", "person", case=DATIVE),
    make_verb("answer", "antworten antwortet geantwortet", "person", case=DATIVE, manners=(QUIETLY, QUICKLY)),
    make_verb(
        "follow", "folgen folgt ist gefolgt", "person animal transport", by=LIVING, case=DATIVE, manners=(SLOWLY,)
    ),
    make_verb("listen", "zu|hören hört zugehört", "person", preposition="to/", case=DATIVE),
    make_verb("trust", "vertrauen vertraut vertraut", "person", case=DATIVE, **NOW_ONLY),
    make_verb(
        "belong", "gehören gehört gehört", "person", by="object pet", preposition="to/", case=DATIVE, **NOW_ONLY
    ),
    make_verb("like", "gefallen gefällt gefallen", "object text place show heard", **EXPERIENCED),
    make_verb("like", "schmecken schmeckt geschmeckt", "food drink", **EXPERIENCED),
    make_verb("miss", "fehlen fehlt gefehlt", "kin pet", **EXPERIENCED),
    # With a preposition.
    make_verb("wait", "warten wartet gewartet", "person awaited", preposition="for/auf"),
    make_verb("think thought", "denken denkt gedacht", "person idea journey", preposition="of/an"),
    make_verb("laugh", "lachen lacht gelacht", "told", preposition="at/über", manners=VOICE),
    make_verb("talk", "sprechen spricht gesprochen", "topic", preposition="about/über"),
    make_verb("talk", "sprechen spricht gesprochen", "person", preposition="to/mit", case=DATIVE),
    make_verb("dream", "träumen träumt geträumt", "person dreamt", preposition="of/von", case=DATIVE, **UNWILLED),
    make_verb("play", "spielen spielt gespielt", "toy pet", preposition="with/mit", case=DATIVE),
    # With a dative and an accusative.
    make_verb("give gave given", "geben gibt gegeben", "present drink", receiver="plain"),
    make_verb("show showed shown", "zeigen zeigt gezeigt", "object place text", receiver="plain"),
    make_verb("send sent", "schicken schickt geschickt", "present text", receiver="plain"),
    make_verb("bring brought", "bringen bringt gebracht", "food drink object", receiver="plain"),
    make_verb("lend lent", "leihen leiht geliehen", "present vessel clothing", receiver="plain"),
    make_verb("tell told", "erzählen erzählt erzählt", "told", receiver="plain"),
    make_verb("explain", "erklären erklärt erklärt", "idea", receiver="to"),
    make_verb("recommend", "empfehlen empfiehlt empfohlen", "show known", receiver="to"),
    make_verb("read read", "vor|lesen liest vorgelesen", "text", receiver="to", **SAME_IN_THE_PAST),
    # Without an object.
    make_verb("sleep slept", "schlafen schläft geschlafen", by=LIVING, places=SOMEWHERE),
    make_verb("work", "arbeiten arbeitet gearbeitet", places=ANYWHERE, manners=CARE, pastime=True),
    make_verb("laugh", "lachen lacht gelacht", manners=VOICE),
    make_verb("cry", "weinen weint geweint", places=SOMEWHERE, manners=VOICE, **UNWILLED),
    make_verb("dance", "tanzen tanzt getanzt", places=ANYWHERE, manners=(SLOWLY,), pastime=True),
    make_verb("sing sang sung", "singen singt gesungen", places=ANYWHERE, manners=VOICE, pastime=True),
    make_verb("swim swam swum", "schwimmen schwimmt ist geschwommen", by=LIVING, manners=PACE, pastime=True),
    make_verb("arrive", "an|kommen kommt ist angekommen", by="person transport", **UNWILLED),
    make_verb("get got", "auf|stehen steht ist aufgestanden", particle="up", manners=PACE),
    make_verb("fall fell fallen", "ein|schlafen schläft ist eingeschlafen", by=LIVING, particle="asleep", **UNWILLED),
    make_verb("wake woke woken", "auf|wachen wacht ist aufgewacht", by=LIVING, particle="up", **UNWILLED),
    make_verb("come came come", "zurück|kommen kommt ist zurückgekommen", particle="back", places=TOGETHER),
    # With a place or a goal.
    make_verb("sit sat", "sitzen sitzt gesessen", places=SOMEWHERE, needs_place=True),
    make_verb("stay", "bleiben bleibt ist geblieben", places=(IN, AT), needs_place=True),
    make_verb("live", "wohnen wohnt gewohnt", places=(IN_HOME,), needs_place=True, **NOW_ONLY),
    make_verb("lie lay lain", "liegen liegt gelegen", by="flat", places=(ON,), needs_place=True, tenses=(PRESENT,)),
    make_verb("stand stood", "stehen steht gestanden", by="vessel", places=(ON,), needs_place=True, tenses=(PRESENT,)),
    make_verb("go went gone", "gehen geht ist gegangen", goals=(TO, INTO)),
    make_verb("drive drove driven", "fahren fährt ist gefahren", goals=(TO,), places=TOGETHER),
    make_verb("run ran run", "laufen läuft ist gelaufen", by=LIVING, goals=(TO, INTO), manners=(QUICKLY,)),
    make_verb("come came come", "kommen kommt ist gekommen", by=LIVING, goals=(OUT_OF,), manners=(SLOWLY,)),
    make_verb("bring brought", "bringen bringt gebracht", "person pet", goals=(TO, INTO)),
    make_verb("put put", "legen legt gelegt", "flat", goals=(ONTO,), **SAME_IN_THE_PAST),
    make_verb("put put", "stellen stellt gestellt", "vessel", goals=(ONTO,), **SAME_IN_THE_PAST),
]

MODALS = [
    Modal("can", "", german_verb("können kann gekonnt", first="kann")),
    Modal("must", "", german_verb("müssen muss gemusst", first="muss"), negated=False),
    Modal(
        "should", "", GermanVerb("sollen", "zu sollen", ("sollte", "sollte", "sollten"), None, "gesollt", "haben", "")
    ),
    Modal(english_verb("want"), "to", german_verb("wollen will gewollt", "will", "wollte"), (PRESENT, PAST)),
    Modal(HAVE, "to", german_verb("müssen muss gemusst", "muss", "musste"), (PRESENT, PAST)),
    Modal(BE.english, "allowed to", german_verb("dürfen darf gedurft", "darf", "durfte"), (PRESENT, PAST)),
]
WILL = Modal("will", "", WERDEN)
LIKE_TO = Modal(english_verb("like"), "to", None, negated=False)

THAT, WHETHER = Linker("that", "dass"), Linker("whether", "ob")
BECAUSE, ALTHOUGH = Linker("because", "weil"), Linker("although", "obwohl")
IF, WHILE = Linker("if", "wenn"), Linker("while", "während")
AND, BUT = Linker("and", "und", "main"), Linker(", but", ", aber", "main")
TO_DO, IN_ORDER_TO = Linker("to", "", "infinitive"), Linker("in order to", "um", "infinitive")

SPEAKING = {"tenses": (PRESENT,), "stative": True}
SAY = make_verb("say said", "sagen sagt gesagt", tenses=(PRESENT, PAST), stative=True)
KNOW = make_verb("know knew known", "wissen weiß gewusst", first="weiß", **SPEAKING)
THAT_VERBS = [
    SAY,
    KNOW,
    make_verb("think thought", "denken denkt gedacht", **SPEAKING),
    make_verb("believe", "glauben glaubt geglaubt", **SPEAKING),
]
TO_VERBS = [
    make_verb("try", "versuchen versucht versucht", tenses=(PRESENT, PAST)),
    make_verb("promise", "versprechen verspricht versprochen", tenses=(PAST, PERFECT)),
    make_verb("forget forgot forgotten", "vergessen vergisst vergessen", tenses=(PAST, PERFECT)),
    make_verb("decide", "beschließen beschließt beschlossen", tenses=(PAST, PERFECT)),
    make_verb("start", "an|fangen fängt angefangen", tenses=(PAST, PERFECT)),
]
