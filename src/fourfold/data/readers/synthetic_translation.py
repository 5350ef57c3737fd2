"""Endless exact translations without a network: dates, durations, money, names, numbers in words.

The rules of the Unicode CLDR (through Babel) and of num2words say the same value in many languages,
with real reordering ("March 5, 2024" and "5. März 2024", "forty-two" and "zweiundvierzig"), so the
reference is always right and a perfect score is possible.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from fourfold.core.errors import InputError
from fourfold.data.sources import Rows

_HELD_OUT = {"test": 500, "val": 500}
_CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "PLN", "INR", "CAD", "AUD", "DKK", "NOK")
_UNITS = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-mile", "mass-kilogram"),
    *("mass-gram", "volume-liter", "temperature-celsius", "area-hectare", "duration-week"),
)
_NOWHERE = {"XA", "XB", "ZZ", "QO", "mul", "und", "zxx"}
_CLOCK = ("year", "month", "week", "day", "hour", "minute", "second")

# A value to be said, as a function of the language that says it.
Saying = Callable[["_Voice"], str]
Maker = Callable[[random.Random], Saying]


class _Voice:
    """One language: its CLDR data and its number words."""

    def __init__(self, lang: str) -> None:
        from babel import Locale, UnknownLocaleError
        from num2words import num2words

        try:
            self.locale = Locale.parse(lang)
            num2words(1, lang=lang)
        except (UnknownLocaleError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"The embedded translations have no language {lang!r}:"
                " it must be known to Babel and to num2words, like en, de, fr or es."
            ) from error
        self._spell = lru_cache(maxsize=None)(partial(num2words, lang=lang))

    def words(self, number: int, to: str) -> str:
        """The number in words."""
        return self._spell(number, to=to)

    def can_measure(self, unit: str) -> bool:
        """Whether the CLDR has a word for the unit; else Babel would print its identifier."""
        from babel.units import format_unit

        return unit not in format_unit(5, unit, locale=self.locale)

    def can(self, to: str) -> bool:
        """Whether the language has this form of numbers in words."""
        try:
            return bool(self.words(1984, to))
        except (NotImplementedError, TypeError, ValueError):
            return False


def _day(rng: random.Random) -> datetime.date:
    return datetime.date(1900, 1, 1) + datetime.timedelta(rng.randrange(73_000))


def _number(rng: random.Random, digits: int) -> int:
    """Short and long numbers alike."""
    return rng.randrange(1, 10 ** rng.randint(1, digits))


def _date(rng: random.Random) -> Saying:
    from babel.dates import format_date

    day, style = _day(rng), rng.choice(["full", "long", "medium"])
    return lambda voice: format_date(day, style, locale=voice.locale)


def _interval(rng: random.Random) -> Saying:
    from babel.dates import format_interval

    first = _day(rng)
    last = first + datetime.timedelta(rng.randint(1, 400))
    return lambda voice: format_interval(first, last, "yMMMd", locale=voice.locale)


def _ago(rng: random.Random) -> Saying:
    from babel.dates import TIMEDELTA_UNITS, format_timedelta

    unit = rng.choice(_CLOCK)
    span = datetime.timedelta(
        seconds=dict(TIMEDELTA_UNITS)[unit] * rng.randint(2, 99) * rng.choice([-1, 1])
    )
    options: dict[str, Any] = {"granularity": unit, "threshold": 1e9, "add_direction": True}
    return lambda voice: format_timedelta(span, locale=voice.locale, **options)


def _duration(units: list[str], rng: random.Random) -> Saying:
    from babel.lists import format_list
    from babel.units import format_unit

    begin = rng.randrange(len(units) - 1)
    parts = [(rng.randint(1, 59), unit) for unit in units[begin : begin + rng.randint(2, 3)]]

    def say(voice: _Voice) -> str:
        said = [format_unit(n, unit, locale=voice.locale) for n, unit in parts]
        return format_list(said, locale=voice.locale)

    return say


def _measure(units: list[str], rng: random.Random) -> Saying:
    from babel.units import format_unit

    unit, number = rng.choice(units), _number(rng, 6) / rng.choice([1, 10])
    return lambda voice: format_unit(number, unit, locale=voice.locale)


def _money(rng: random.Random) -> Saying:
    from babel.numbers import format_currency

    amount, currency = _number(rng, 8) / 100, rng.choice(_CURRENCIES)
    style: Any = rng.choice(["name", "standard"])
    return lambda voice: format_currency(amount, currency, locale=voice.locale, format_type=style)


def _names(kind: str, known: list[str], rng: random.Random) -> Saying:
    from babel.lists import format_list

    codes = rng.sample(known, rng.randint(2, 4))
    style: Any = rng.choice(["standard", "or"])

    def say(voice: _Voice) -> str:
        names = [getattr(voice.locale, kind)[code] for code in codes]
        return format_list(names, style=style, locale=voice.locale)

    return say


def _spelled(to: str, rng: random.Random) -> Saying:
    number = rng.randrange(1100, 2100) if to == "year" else _number(rng, 6)
    return lambda voice: voice.words(number, to)


def _makers(voices: list[_Voice]) -> list[Maker]:
    """What can be said in both languages."""
    makers: list[Maker] = [_date, _interval, _ago, _money]
    for maker, units in ((_duration, [f"duration-{unit}" for unit in _CLOCK]), (_measure, _UNITS)):
        said = [unit for unit in units if all(voice.can_measure(unit) for voice in voices)]
        if len(said) >= 3:
            makers.append(partial(maker, said))
    for kind, length in (("languages", 3), ("territories", 2)):
        known = set.intersection(*(set(getattr(voice.locale, kind)) for voice in voices))
        # Longer codes are dialects and parts of the world.
        codes = sorted(code for code in known if len(code) <= length and code not in _NOWHERE)
        makers.append(partial(_names, kind, codes))
    for to in ("cardinal", "ordinal", "year"):
        if all(voice.can(to) for voice in voices):
            makers.append(partial(_spelled, to))
    return makers


@lru_cache(maxsize=4)
def embedded_pairs(src_lang: str, tgt_lang: str, n_train: int) -> dict[str, Rows]:
    """Sentence pairs in fixed splits: the same on every machine with the same package versions.

    No source and no target sentence occurs twice, so none is in two splits. Validation and test are
    500 pairs each, whatever the size of training; a larger training split begins with a smaller
    one.

    Args:
        src_lang: language code that Babel and num2words know.
        tgt_lang: another one.
        n_train: pairs for training.

    Raises:
        InputError: an unknown language, twice the same, no training pairs, or a package is missing.
    """
    if src_lang == tgt_lang or n_train < 1:
        raise InputError(
            f"Embedded translations need two languages and a row, not {src_lang} to {tgt_lang}"
            f" and {n_train} rows."
        )
    try:
        voices = [_Voice(src_lang), _Voice(tgt_lang)]
    except ImportError as error:
        raise InputError(
            f"source: embedded needs the package {error.name}: pip install -e '.[demo]'."
        ) from error
    makers, rng = _makers(voices), random.Random(f"{src_lang}-{tgt_lang}")
    seen: list[set[str]] = [set(), set()]
    splits = {}
    for split, size in (*_HELD_OUT.items(), ("train", n_train)):
        columns: list[list[str]] = [[], []]
        while len(columns[0]) < size:
            pair = _sentence(makers, voices, rng)
            if pair[0] in seen[0] or pair[1] in seen[1]:
                continue
            for text, column, known in zip(pair, columns, seen, strict=True):
                column.append(text)
                known.add(text)
        splits[split] = Rows.of(columns, f"embedded {src_lang}-{tgt_lang} {split}, row")
    return {name: splits[name] for name in ("train", "val", "test")}


def _sentence(makers: list[Maker], voices: list[_Voice], rng: random.Random) -> list[str]:
    """One to three things, said in each language."""
    from babel.lists import format_list

    sayings = [rng.choice(makers)(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    said = [
        format_list([saying(voice) for saying in sayings], locale=voice.locale) for voice in voices
    ]
    # CLDR writes several kinds of blanks that look alike.
    return [re.sub(r"\s+", " ", text) for text in said]
