"""Built-in translation pairs: dates, durations, money, names and numbers, from Babel and num2words.

The rules of the Unicode CLDR (through Babel) and of num2words express the same value in many
languages, and the languages order the words differently ("March 5, 2024" and "5. März 2024",
"forty-two" and "zweiundvierzig"). A reference always has the value of its source sentence, so a
perfect score is possible.
"""

import datetime
import random
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

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


class _Language(NamedTuple):
    """Language code for num2words, and the `babel.Locale` of the same language."""

    lang: str
    locale: Any


# Function that formats a sampled value in a language.
Formatter = Callable[[_Language], str]
# Function that samples a value.
Sampler = Callable[[random.Random], Formatter]


def _language(lang: str) -> _Language:
    from babel import Locale, UnknownLocaleError

    try:
        _spell(1, lang=lang)
        return _Language(lang, Locale.parse(lang))
    except (UnknownLocaleError, ValueError, NotImplementedError) as error:
        message = "must be languages of Babel and num2words, such as en, de, fr or es"
        raise InputError(f"{message}, got {lang!r}", option="data.langs") from error


@cache
def _spell(number: int, lang: str, to: str = "cardinal") -> str:
    """Return a number in words; `to` is a form of num2words, such as "ordinal"."""
    from num2words import num2words

    text: str = num2words(number, lang=lang, to=to)
    return text


def _has_unit(unit: str, language: _Language) -> bool:
    """Return True if the CLDR has a word for a unit; otherwise Babel prints its identifier."""
    return unit not in _unit(5, unit)(language)


def _has_number_form(to: str, language: _Language) -> bool:
    """Return True if num2words has a form of numbers, such as "ordinal", in a language."""
    try:
        return bool(_spell(1984, lang=language.lang, to=to))
    except (NotImplementedError, TypeError, ValueError):
        return False


def _day(rng: random.Random) -> datetime.date:
    return datetime.date(1900, 1, 1) + datetime.timedelta(rng.randrange(73_000))


def _number(rng: random.Random, digits: int) -> int:
    """Sample a number of 1 to `digits` digits; each number of digits is equally likely."""
    return rng.randrange(1, 10 ** rng.randint(1, digits))


def _in_locale(function: Callable[..., str], *values: Any, **options: Any) -> Formatter:
    """Return a formatter that calls a function of Babel with the locale of the language."""
    return lambda language: function(*values, locale=language.locale, **options)


def _unit(number: float, unit: str) -> Formatter:
    from babel.units import format_unit

    return _in_locale(format_unit, number, unit)


def _date(rng: random.Random) -> Formatter:
    from babel.dates import format_date

    return _in_locale(format_date, _day(rng), rng.choice(["full", "long", "medium"]))


def _interval(rng: random.Random) -> Formatter:
    from babel.dates import format_interval

    first = _day(rng)
    last = first + datetime.timedelta(rng.randint(1, 400))
    return _in_locale(format_interval, first, last, "yMMMd")


def _ago(rng: random.Random) -> Formatter:
    from babel.dates import TIMEDELTA_UNITS, format_timedelta

    unit = rng.choice(_TIME_UNITS)
    seconds = dict(TIMEDELTA_UNITS)[unit] * rng.randint(2, 99) * rng.choice([-1, 1])
    span = datetime.timedelta(seconds=seconds)
    return _in_locale(format_timedelta, span, granularity=unit, threshold=1e9, add_direction=True)


def _duration(units: Sequence[str], rng: random.Random) -> Formatter:
    begin = rng.randrange(len(units) - 1)
    parts = [(rng.randint(1, 59), unit) for unit in units[begin : begin + rng.randint(2, 3)]]
    return _list([_unit(number, unit) for number, unit in parts])


def _measure(units: Sequence[str], rng: random.Random) -> Formatter:
    unit = rng.choice(units)
    return _unit(_number(rng, 6) / rng.choice([1, 10]), unit)


def _money(rng: random.Random) -> Formatter:
    from babel.numbers import format_currency

    amount = _number(rng, 8) / 100
    currency = rng.choice(_CURRENCIES)
    return _in_locale(
        format_currency, amount, currency, format_type=rng.choice(["name", "standard"])
    )


def _names(category: str, known: Sequence[str], rng: random.Random) -> Formatter:
    codes = rng.sample(known, rng.randint(2, 4))
    names = [partial(_name, category, code) for code in codes]
    return _list(names, style=rng.choice(["standard", "or"]))


def _name(category: str, code: str, language: _Language) -> str:
    """Return the name of a language or territory."""
    name: str = getattr(language.locale, category)[code]
    return name


def _spelled(to: str, rng: random.Random) -> Formatter:
    number = rng.randrange(1100, 2100) if to == "year" else _number(rng, 6)
    return lambda language: _spell(number, lang=language.lang, to=to)


def _list(formatters: Sequence[Formatter], style: Any = "standard") -> Formatter:
    """Return a formatter that joins the texts of several formatters as a list."""
    from babel.lists import format_list

    return lambda language: format_list(
        [formatter(language) for formatter in formatters], style=style, locale=language.locale
    )


def _samplers(languages: Sequence[_Language]) -> list[Sampler]:
    """Return the samplers whose values can be formatted in both languages."""
    samplers: list[Sampler] = [_date, _interval, _ago, _money]
    durations = [f"duration-{unit}" for unit in _TIME_UNITS]
    for sampler, units in ((_duration, durations), (_measure, _MEASURES)):
        shared = [unit for unit in units if all(_has_unit(unit, lang) for lang in languages)]
        if len(shared) >= 3:
            samplers.append(partial(sampler, shared))
    for category, length in (("languages", 3), ("territories", 2)):
        known = set.intersection(*(set(getattr(lang.locale, category)) for lang in languages))
        # Longer codes are dialects and continents.
        codes = sorted(code for code in known if len(code) <= length and code not in _NOT_A_PLACE)
        samplers.append(partial(_names, category, codes))
    for to in ("cardinal", "ordinal", "year"):
        if all(_has_number_form(to, lang) for lang in languages):
            samplers.append(partial(_spelled, to))
    return samplers


@lru_cache(maxsize=4)
def synthetic_pairs(src_lang: str, tgt_lang: str, n_train: int) -> dict[str, TextTable]:
    """Return generated sentence pairs in fixed splits.

    The pairs are equal on all machines that have equal versions of the packages. No source and no
    target sentence occurs twice, so no sentence is in two splits. Validation and test have 500
    pairs each. A larger training split begins with the pairs of a smaller training split.

    Args:
        src_lang: Source language, a code that Babel and num2words know.
        tgt_lang: Target language.
        n_train: Number of training pairs.

    Returns:
        Tables of the splits "train", "val" and "test"; the first column has the source sentences
        and the second column the target sentences.

    Raises:
        InputError: If a language is unknown, if both are equal, if `n_train` is below 1, or if a
            package is missing.
    """
    if src_lang == tgt_lang:
        raise InputError(f"must be two languages, got {src_lang} twice", option="data.langs")
    check_positive("data.rows", n_train)
    try:
        languages = [_language(src_lang), _language(tgt_lang)]
    except ImportError as error:
        message = (
            f"cannot be builtin without the package {error.name}: pip install 'fourfold[demo]'"
        )
        raise InputError(message, option="data.source") from error
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
        source = f"built-in {src_lang}-{tgt_lang}, {split}, row "
        splits[split] = TextTable.from_columns(columns, source)
    return {name: splits[name] for name in ("train", "val", "test")}


def _sample_pair(
    samplers: Sequence[Sampler], languages: Sequence[_Language], rng: random.Random
) -> list[str]:
    """Sample one to three values and format them in each language."""
    formatter = _list([rng.choice(samplers)(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))])
    # The CLDR contains several kinds of spaces, which look alike.
    return [re.sub(r"\s+", " ", formatter(language)) for language in languages]
