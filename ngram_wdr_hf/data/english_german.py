"""English-German lists of dates, times, amounts and names, from Unicode's locale data (CLDR), as Babel ships it.

The languages differ in word order, number and case: "March 5 or 3 days ago" is "5. März oder vor 3 Tagen".
"""

import random
from collections.abc import Callable
from datetime import date, timedelta

from babel import Locale
from babel.dates import format_date, format_interval, format_skeleton, format_time, format_timedelta
from babel.lists import format_list
from babel.numbers import format_compact_decimal, format_currency, format_percent
from babel.units import format_compound_unit, format_unit
from datasets import Dataset

ENGLISH, GERMAN = Locale("en"), Locale("de")
NUM_PAIRS = {"train": 12_000, "validation": 300, "test": 500}
QUANTITIES = ("area-", "duration-", "energy-", "length-", "mass-", "power-", "temperature-", "volume-")
DISTANCES = ("length-kilometer", "length-mile", "length-meter", "volume-liter")
DURATIONS = ("duration-second", "duration-minute", "duration-hour", "duration-day")
PARTS_OF_DATES = ("MMMMd", "MMMMEEEEd", "yMMMM", "yMMMMd", "yMMMMEEEEd")
# Units of relative times, with their seconds and the largest count that is not yet rounded to the next unit.
RELATIVE_UNITS = {"minute": (60, 50), "hour": (3600, 20), "day": (86_400, 5)}
RELATIVE_UNITS |= {"week": (604_800, 3), "month": (2_592_000, 10), "year": (31_536_000, 50)}
# A phrase: its text in any language.
Phrase = Callable[[Locale], str]


def _shared(names: str) -> list[str]:
    """Return the keys of a table of names that both languages have, without historical entries, sorted."""
    english, german = getattr(ENGLISH, names), getattr(GERMAN, names)
    return sorted(key for key in english.keys() & german.keys() if "(" not in str(english[key]) + str(german[key]))


UNITS = [unit for unit in _shared("unit_display_names") if unit.startswith(QUANTITIES)]
CURRENCIES = _shared("currencies")
NAMES = {table: _shared(table) for table in ("territories", "languages")}
# A name is drawn twice as often as any other kind of phrase.
KINDS = ("date", "day", "period", "time", "ago", "quantity", "speed", "price", "sum", "percentage", "name", "name")


def _phrase(kind: str, rng: random.Random) -> Phrase:
    match kind:
        case "date":
            day, length = _day(rng), rng.choice(["medium", "long", "full"])
            return lambda locale: format_date(day, length, locale)
        case "day":
            day, skeleton = _day(rng), rng.choice(PARTS_OF_DATES)
            return lambda locale: format_skeleton(skeleton, day, locale=locale)
        case "period":
            day = _day(rng)
            last = day + timedelta(days=rng.randint(1, 60))
            return lambda locale: format_interval(day, last, "yMMMMd", locale=locale)
        case "time":
            seconds = 60 * rng.randrange(24 * 60)
            return lambda locale: format_time(seconds, "short", locale=locale)
        case "ago":
            unit = rng.choice(list(RELATIVE_UNITS))
            seconds, most = RELATIVE_UNITS[unit]
            delta = timedelta(seconds=rng.choice([-1, 1]) * rng.randint(1, most) * seconds)
            return lambda locale: format_timedelta(delta, unit, add_direction=True, locale=locale)
        case "quantity":
            number, unit = _number(rng), rng.choice(UNITS)
            return lambda locale: format_unit(number, unit, locale=locale)
        case "speed":
            number, unit, time = _number(rng), rng.choice(DISTANCES), rng.choice(DURATIONS)
            return lambda locale: format_compound_unit(number, unit, denominator_unit=time, locale=locale)
        case "price":
            number, currency = _number(rng), rng.choice(CURRENCIES)
            return lambda locale: format_currency(number, currency, locale=locale, format_type="name")
        case "sum":
            number = rng.randint(1, 999) * 10 ** rng.choice([4, 6, 7, 9])
            return lambda locale: format_compact_decimal(number, format_type="long", locale=locale, fraction_digits=1)
        case "percentage":
            number = rng.randint(1, 1000) / 1000
            return lambda locale: format_percent(number, "#,##0.# %" if locale is GERMAN else "#,##0.#%", locale)
        case _:
            table = rng.choice(list(NAMES))
            code = rng.choice(NAMES[table])
            return lambda locale: getattr(locale, table)[code]


def _day(rng: random.Random) -> date:
    return date(1950, 1, 1) + timedelta(days=rng.randrange(36_500))


def _number(rng: random.Random) -> float:
    return rng.choice([rng.randint(1, 20), rng.randint(1, 2000), rng.randint(1, 400) / 4])


def english_german(num_pairs: dict[str, int] = NUM_PAIRS, seed: int = 0) -> dict[str, Dataset]:
    """Return splits of English texts (`source`) and their translations (`target`), none twice."""
    rng, seen, splits = random.Random(seed), set(), {}
    # Last split first, so that the test set does not depend on the size of the training set.
    for split, size in reversed(num_pairs.items()):
        rows = []
        while len(rows) < size:
            phrases = [_phrase(kind, rng) for kind in rng.choices(KINDS, k=rng.randint(1, 3))]
            style = rng.choice(["standard", "or"])
            source, target = (
                format_list([phrase(locale) for phrase in phrases], style, locale) for locale in (ENGLISH, GERMAN)
            )
            if seen.isdisjoint((source, target)):
                seen |= {source, target}
                rows.append({"source": source, "target": target})
        splits[split] = Dataset.from_list(rows)
    return {split: splits[split] for split in num_pairs}
