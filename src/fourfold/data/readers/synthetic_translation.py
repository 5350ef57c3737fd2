"""Built-in translation pairs: dates, durations, money, names and numbers, from Babel and num2words.

The rules of the Unicode CLDR (through Babel) and of num2words express the same value in many
languages, with real reordering ("March 5, 2024" and "5. März 2024", "forty-two" and
"zweiundvierzig"). The reference is always right, so a perfect score is possible.
"""

import datetime
import random
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from fourfold.core.validation import check_positive
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

_EVAL_ROWS = {"test": 500, "val": 500}
_CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "PLN", "INR", "CAD", "AUD", "DKK", "NOK")
_MEASURES = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-mile", "mass-kilogram"),
    *("mass-gram", "volume-liter", "temperature-celsius", "area-hectare", "duration-week"),
)
_NOT_A_PLACE = {"XA", "XB", "ZZ", "QO", "mul", "und", "zxx"}
_TIME_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")

# Function that formats a sampled value in a language.
Formatter = Callable[["_Language"], str]
# Function that samples a value.
Sampler = Callable[[random.Random], Formatter]


class _Language:
    """CLDR data and number words of a language."""

    def __init__(self, lang: str) -> None:
        from babel import Locale, UnknownLocaleError
        from num2words import num2words

        try:
            self.locale = Locale.parse(lang)
            num2words(1, lang=lang)
        except (UnknownLocaleError, ValueError, NotImplementedError) as error:
            message = "must be languages of Babel and num2words, such as en, de, fr or es"
            raise InputError(f"{message}, got {lang!r}", option="data.langs") from error
        self._spell = lru_cache(maxsize=None)(partial(num2words, lang=lang))

    def number_in_words(self, number: int, to: str) -> str:
        """Return a number in words; `to` is a form of num2words, such as "ordinal"."""
        return self._spell(number, to=to)

    def has_unit(self, unit: str) -> bool:
        """Return True if the CLDR has a word for a unit; otherwise Babel prints its identifier."""
        from babel.units import format_unit

        return unit not in format_unit(5, unit, locale=self.locale)

    def has_number_form(self, to: str) -> bool:
        """Return True if num2words has a form of numbers, such as "ordinal"."""
        try:
            return bool(self.number_in_words(1984, to))
        except (NotImplementedError, TypeError, ValueError):
            return False


def _day(rng: random.Random) -> datetime.date:
    return datetime.date(1900, 1, 1) + datetime.timedelta(rng.randrange(73_000))


def _number(rng: random.Random, digits: int) -> int:
    """Sample a number; every number of digits is equally likely."""
    return rng.randrange(1, 10 ** rng.randint(1, digits))


def _date(rng: random.Random) -> Formatter:
    from babel.dates import format_date

    day = _day(rng)
    style = rng.choice(["full", "long", "medium"])
    return lambda language: format_date(day, style, locale=language.locale)


def _interval(rng: random.Random) -> Formatter:
    from babel.dates import format_interval

    first = _day(rng)
    last = first + datetime.timedelta(rng.randint(1, 400))
    return lambda language: format_interval(first, last, "yMMMd", locale=language.locale)


def _ago(rng: random.Random) -> Formatter:
    from babel.dates import TIMEDELTA_UNITS, format_timedelta

    unit = rng.choice(_TIME_UNITS)
    span = datetime.timedelta(
        seconds=dict(TIMEDELTA_UNITS)[unit] * rng.randint(2, 99) * rng.choice([-1, 1])
    )
    options: dict[str, Any] = {"granularity": unit, "threshold": 1e9, "add_direction": True}
    return lambda language: format_timedelta(span, locale=language.locale, **options)


def _duration(units: list[str], rng: random.Random) -> Formatter:
    from babel.lists import format_list
    from babel.units import format_unit

    begin = rng.randrange(len(units) - 1)
    parts = [(rng.randint(1, 59), unit) for unit in units[begin : begin + rng.randint(2, 3)]]

    def format_value(language: _Language) -> str:
        texts = [format_unit(n, unit, locale=language.locale) for n, unit in parts]
        return format_list(texts, locale=language.locale)

    return format_value


def _measure(units: list[str], rng: random.Random) -> Formatter:
    from babel.units import format_unit

    unit = rng.choice(units)
    number = _number(rng, 6) / rng.choice([1, 10])
    return lambda language: format_unit(number, unit, locale=language.locale)


def _money(rng: random.Random) -> Formatter:
    from babel.numbers import format_currency

    amount = _number(rng, 8) / 100
    currency = rng.choice(_CURRENCIES)
    style: Any = rng.choice(["name", "standard"])
    return lambda language: format_currency(
        amount, currency, locale=language.locale, format_type=style
    )


def _names(category: str, known: list[str], rng: random.Random) -> Formatter:
    from babel.lists import format_list

    codes = rng.sample(known, rng.randint(2, 4))
    style: Any = rng.choice(["standard", "or"])

    def format_value(language: _Language) -> str:
        names = [getattr(language.locale, category)[code] for code in codes]
        return format_list(names, style=style, locale=language.locale)

    return format_value


def _spelled(to: str, rng: random.Random) -> Formatter:
    number = rng.randrange(1100, 2100) if to == "year" else _number(rng, 6)
    return lambda language: language.number_in_words(number, to)


def _samplers(languages: list[_Language]) -> list[Sampler]:
    """Return the samplers whose values can be formatted in both languages."""
    samplers: list[Sampler] = [_date, _interval, _ago, _money]
    for sampler, units in (
        (_duration, [f"duration-{unit}" for unit in _TIME_UNITS]),
        (_measure, _MEASURES),
    ):
        shared = [unit for unit in units if all(language.has_unit(unit) for language in languages)]
        if len(shared) >= 3:
            samplers.append(partial(sampler, shared))
    for category, length in (("languages", 3), ("territories", 2)):
        known = set.intersection(
            *(set(getattr(language.locale, category)) for language in languages)
        )
        # Longer codes are dialects and continents.
        codes = sorted(code for code in known if len(code) <= length and code not in _NOT_A_PLACE)
        samplers.append(partial(_names, category, codes))
    for to in ("cardinal", "ordinal", "year"):
        if all(language.has_number_form(to) for language in languages):
            samplers.append(partial(_spelled, to))
    return samplers


@lru_cache(maxsize=4)
def synthetic_pairs(src_lang: str, tgt_lang: str, n_train: int) -> dict[str, TextTable]:
    """Generate sentence pairs in fixed splits, equal on all machines with equal package versions.

    No source and no target sentence occurs twice, so no sentence is in two splits. Validation and
    test have 500 pairs each. A larger training split begins with the pairs of a smaller one.

    Args:
        src_lang: Source language, a code that Babel and num2words know.
        tgt_lang: Target language.
        n_train: Number of training pairs.

    Raises:
        InputError: If a language is unknown, if both are equal, if there are no training pairs, or
            if a package is missing.
    """
    if src_lang == tgt_lang:
        raise InputError(f"must be two languages, got {src_lang} twice", option="data.langs")
    check_positive("data.rows", n_train)
    try:
        languages = [_Language(src_lang), _Language(tgt_lang)]
    except ImportError as error:
        message = f"cannot be builtin without the package {error.name}"
        raise InputError(
            f"{message}: pip install 'fourfold[demo]'", option="data.source"
        ) from error
    samplers = _samplers(languages)
    rng = random.Random(f"{src_lang}-{tgt_lang}")
    seen: list[set[str]] = [set(), set()]
    splits = {}
    for split, size in (*_EVAL_ROWS.items(), ("train", n_train)):
        columns: list[list[str]] = [[], []]
        while len(columns[0]) < size:
            pair = _sample_pair(samplers, languages, rng)
            if pair[0] in seen[0] or pair[1] in seen[1]:
                continue
            for text, column, known in zip(pair, columns, seen, strict=True):
                column.append(text)
                known.add(text)
        splits[split] = TextTable.from_columns(
            columns, f"built-in {src_lang}-{tgt_lang}, {split}, row "
        )
    return {name: splits[name] for name in ("train", "val", "test")}


def _sample_pair(
    samplers: list[Sampler], languages: list[_Language], rng: random.Random
) -> list[str]:
    """Sample one to three values and format them in each language."""
    from babel.lists import format_list

    formatters = [rng.choice(samplers)(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    texts = [
        format_list([formatter(language) for formatter in formatters], locale=language.locale)
        for language in languages
    ]
    # The CLDR contains several kinds of spaces, which look alike.
    return [re.sub(r"\s+", " ", text) for text in texts]
