"""Built-in translation pairs: dates, durations, money, names and numbers, from Babel and num2words.

Babel (with the rules of the Unicode CLDR) and num2words express the same value in many languages.
The languages order the parts of a value differently, as in "March 5, 2024" and "5. März 2024", or
"forty-two" and "zweiundvierzig". Source and target express the same values in fixed forms, so a
model can reach a perfect score.
"""

import datetime
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any

from fourfold.data.readers.hf_datasets import loading
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

_EVAL_ROWS = 500  # pairs in the validation split, and in the test split
_N_VALUES = (1, 1, 2, 2, 3)  # the number of values of a sentence is sampled from these numbers
_CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "PLN", "INR", "CAD", "AUD", "DKK", "NOK")
_MEASURES = (
    *("length-kilometer", "length-meter", "length-centimeter", "length-mile", "mass-kilogram"),
    *("mass-gram", "volume-liter", "temperature-celsius", "area-hectare", "duration-week"),
)
_NOT_A_PLACE = {"XA", "XB", "ZZ", "QO", "mul", "und", "zxx"}  # codes without a place or language
_TIME_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_SECONDS = (31_536_000, 2_592_000, 604_800, 86_400, 3600, 60, 1)  # seconds of each time unit


# Function that takes the code of a language, such as "de", and returns a value as text.
Formatter = Callable[[str], str]
# Function that samples a value with a random generator, and returns the formatter of this value.
Sampler = Callable[[random.Random], Formatter]


@cache
def _locale(lang: str) -> Any:
    """Return the `babel.Locale` of a language code, which num2words must know, too."""
    from babel import Locale, UnknownLocaleError

    try:
        _spell(1, lang)
        return Locale.parse(lang)
    except (UnknownLocaleError, ValueError, NotImplementedError) as error:
        message = "must be languages of Babel and num2words, such as en, de, fr or es"
        raise InputError(f"{message}, got {lang!r}", option="data.langs") from error


@cache
def _spell(number: int, lang: str, to: str = "cardinal") -> str:
    """Return a number in words; `to` is its form: "cardinal", "ordinal" or "year"."""
    from num2words import num2words

    return str(num2words(number, lang=lang, to=to))


def _day(rng: random.Random) -> datetime.date:
    return datetime.date(1900, 1, 1) + datetime.timedelta(rng.randrange(73_000))


def _number(rng: random.Random, digits: int) -> int:
    """Sample a positive integer with at most k digits, where k is sampled from 1 to `digits`."""
    return rng.randrange(1, 10 ** rng.randint(1, digits))


def _babel(module: str, function: str, *values: Any, **options: Any) -> Formatter:
    """Return the formatter of a value by a function of a module of Babel."""
    call = getattr(import_module(f"babel.{module}"), function)
    return lambda lang: call(*values, locale=_locale(lang), **options)


def _unit(number: float, unit: str) -> Formatter:
    return _babel("units", "format_unit", number, unit)


def _date(rng: random.Random) -> Formatter:
    return _babel("dates", "format_date", _day(rng), rng.choice(["full", "long", "medium"]))


def _interval(rng: random.Random) -> Formatter:
    first = _day(rng)
    last = first + datetime.timedelta(rng.randint(1, 400))
    return _babel("dates", "format_interval", first, last, "yMMMd")


def _ago(rng: random.Random) -> Formatter:
    unit, seconds = rng.choice(list(zip(_TIME_UNITS, _SECONDS, strict=True)))
    span = datetime.timedelta(seconds=seconds * rng.randint(2, 99) * rng.choice([-1, 1]))
    options = {"granularity": unit, "threshold": 1e9, "add_direction": True}
    return _babel("dates", "format_timedelta", span, **options)


def _duration(units: Sequence[str], rng: random.Random) -> Formatter:
    begin = rng.randrange(len(units) - 1)
    parts = [(rng.randint(1, 59), unit) for unit in units[begin : begin + rng.randint(2, 3)]]
    return _list([_unit(number, unit) for number, unit in parts])


def _measure(units: Sequence[str], rng: random.Random) -> Formatter:
    unit = rng.choice(units)
    return _unit(_number(rng, 6) / rng.choice([1, 10]), unit)


def _money(rng: random.Random) -> Formatter:
    amount = _number(rng, 8) / 100
    currency = rng.choice(_CURRENCIES)
    style = rng.choice(["name", "standard"])
    return _babel("numbers", "format_currency", amount, currency, format_type=style)


def _names(category: str, known: Sequence[str], rng: random.Random) -> Formatter:
    """Return the formatter of a list of names of random languages or territories."""
    codes = rng.sample(known, rng.randint(2, 4))
    names = [partial(_name, category, code) for code in codes]
    return _list(names, style=rng.choice(["standard", "or"]))


def _name(category: str, code: str, lang: str) -> str:
    return str(getattr(_locale(lang), category)[code])


def _spelled(to: str, rng: random.Random) -> Formatter:
    number = rng.randrange(1100, 2100) if to == "year" else _number(rng, 6)
    return lambda lang: _spell(number, lang, to)


def _list(formatters: Sequence[Formatter], style: str = "standard") -> Formatter:
    """Return a formatter that joins the texts of several formatters by "and" or by "or"."""
    return lambda lang: _babel("lists", "format_list", [f(lang) for f in formatters], style)(lang)


def _samplers(langs: Sequence[str]) -> list[Sampler]:
    """Return one sampler for each kind of value that can be written in all languages."""
    samplers: list[Sampler] = [_date, _interval, _ago, _money]
    durations = [f"duration-{unit}" for unit in _TIME_UNITS]
    for sampler, units in ((_duration, durations), (_measure, _MEASURES)):
        # Babel prints the identifier of a unit for which the CLDR has no word.
        shared = [u for u in units if all(u not in _unit(5, u)(lang) for lang in langs)]
        if len(shared) >= 3:
            samplers.append(partial(sampler, shared))
    for category, length in (("languages", 3), ("territories", 2)):
        known = set.intersection(*(set(getattr(_locale(lang), category)) for lang in langs))
        # Longer codes are dialects and continents.
        codes = sorted(code for code in known if len(code) <= length and code not in _NOT_A_PLACE)
        samplers.append(partial(_names, category, codes))
    # num2words cannot write some ordinal numbers, such as the Catalan 30 and the Korean 100.
    for to, numbers in (("cardinal", [1984]), ("ordinal", [30, 100, 1984]), ("year", [1984])):
        # num2words raises one of these errors if a language lacks the form.
        with suppress(NotImplementedError, TypeError, ValueError, KeyError, AttributeError):
            if all(_spell(number, lang, to) for lang in langs for number in numbers):
                samplers.append(partial(_spelled, to))
    return samplers


@lru_cache(maxsize=4)
def synthetic_pairs(src_lang: str, tgt_lang: str, n_train: int) -> dict[str, TextTable]:
    """Return generated sentence pairs in training, validation and test splits.

    The pairs are the same on all machines with the same versions of Babel and num2words. No source
    and no target sentence occurs twice, so no sentence is in two splits. Validation and test have
    500 pairs each. A larger training split begins with the pairs of a smaller training split.

    Raises:
        InputError: If a language is unknown, or if a package is missing.
    """
    langs = (src_lang, tgt_lang)
    with loading(f"built-in {src_lang}-{tgt_lang}"):
        samplers = _samplers(langs)
    rng = random.Random(f"{src_lang}-{tgt_lang}")
    seen: set[tuple[str, str]] = set()  # pairs of a language and a sentence
    splits = {}
    for split, size in (("test", _EVAL_ROWS), ("val", _EVAL_ROWS), ("train", n_train)):
        pairs: list[list[str]] = []
        while len(pairs) < size:
            formatter = _list([rng.choice(samplers)(rng) for _ in range(rng.choice(_N_VALUES))])
            # The CLDR contains several kinds of spaces, which look alike.
            texts = [re.sub(r"\s+", " ", formatter(lang)) for lang in langs]
            sentences = set(zip(langs, texts, strict=True))
            if seen.isdisjoint(sentences):
                seen |= sentences
                pairs.append(texts)
        source = f"built-in {src_lang}-{tgt_lang}, {split}, row "
        splits[split] = TextTable.from_columns([list(c) for c in zip(*pairs, strict=True)], source)
    return {name: splits[name] for name in ("train", "val", "test")}
