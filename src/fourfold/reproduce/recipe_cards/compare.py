"""Comparison of recipe cards: differing values, and derived quantities under their conventions."""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from fourfold.reproduce.cells import format_number
from fourfold.reproduce.recipe_cards.cards import KEYS, MEANINGS, Card
from fourfold.reproduce.recipe_cards.conventions import RESOLVED, Resolution

OPEN = "(open)"  # the source does not state the value
ABSENT = "-"  # the key does not apply to the task

Numbers = tuple[float, ...]


def compare(recipes: Sequence[Card]) -> list[str]:
    """Compare two to 26 recipes; return the lines to print. Each recipe is named by a letter."""
    lettered = dict(zip(ascii_uppercase, recipes, strict=False))
    lines = []
    for letter, card in lettered.items():
        lines += [f"{letter}  {card.name}: {card.title}", f"   {card.source}"]
    keys = [key for key in KEYS if any(key in card.values for card in recipes)]
    differing = [key for key in keys if not _same(card.values.get(key, OPEN) for card in recipes)]
    rows = [["", *lettered], *([k, *(_noted(c, k) for c in recipes)] for k in differing)]
    width = max(24, *(len(text) + 2 for row in rows for text in row))
    lines.append("")
    for key, *values in rows:
        lines.append(f"{key:<26}{''.join(f'{x:<{width}}' for x in values)}".rstrip())
    if not differing:
        lines.append("the recipes do not differ")
    if resolved := list(_resolved(lettered)):
        lines += ["", "Derived quantities under the convention of each recipe", *resolved]
    notes = [
        f"{letter} {key}: {note}"
        for letter, card in lettered.items()
        for key, note in card.notes.items()
    ]
    if notes:
        lines += ["", "Notes on values marked with *", *notes]
    noted = {key for card in recipes for key in card.notes}
    same = [
        f"{key} {_text(recipes[0], key)}{'*' * (key in noted)}"
        for key in keys
        if key not in differing
    ]
    if same:
        lines += ["", f"Equal in {'both' if len(recipes) == 2 else 'all'}: {', '.join(same)}"]
    return lines


def _same(values: Iterator[Any]) -> bool:
    first = next(values)
    return all(value == first for value in values)


def _text(card: Card, key: str) -> str:
    value: Any = card.values.get(key, ABSENT if card.lacks(key) else OPEN)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _noted(card: Card, key: str) -> str:
    return _text(card, key) + "*" * (key in card.notes)


def _resolved(lettered: Mapping[str, Card]) -> Iterator[str]:
    """Format each derived quantity whose inputs differ, with the meaning of its conventions."""
    explained: set[str] = set()
    for quantity in RESOLVED:
        results = {letter: quantity.of(card.values) for letter, card in lettered.items()}
        groups = _groups(results)
        inputs = quantity.needs or quantity.optional
        equal_inputs = _same([c.values.get(key) for key in inputs] for c in lettered.values())
        if not groups or (equal_inputs and len(groups[0]) == len(lettered)):
            continue
        yield quantity.title
        keys = (*quantity.needs, *quantity.optional)
        for letter, card in lettered.items():
            text = ", ".join(format_number(x) for x in results[letter] or ())
            values = ", ".join(f"{key} {_noted(card, key)}" for key in keys if key in card.values)
            line = f"  {letter}  {text or _missing(quantity, card)}"
            yield line + (f"   from {values}" if values else "")
        conventions = [(key, card.values.get(key)) for key in keys for card in lettered.values()]
        meanings = [
            f"     {value}: {MEANINGS[key][value]}"
            for key, value in conventions
            if value in MEANINGS.get(key, {})
        ]
        yield from (line for line in dict.fromkeys(meanings) if line not in explained)
        explained.update(meanings)
        yield from _conclusions(quantity, lettered, groups)


def _missing(quantity: Resolution, card: Card) -> str:
    return ABSENT if any(card.lacks(key) for key in quantity.needs) else "not stated"


def _groups(results: Mapping[str, Numbers | None]) -> list[list[str]]:
    """Group the letters of recipes with equal results."""
    groups: list[list[str]] = []
    for letter, numbers in results.items():
        if numbers is None:
            continue
        equal = (group for group in groups if _close(results[group[0]], numbers))
        if (group := next(equal, None)) is None:
            groups.append([letter])
        else:
            group.append(letter)
    return groups


def _close(x: Any, y: Any) -> bool:
    return all(abs(p - q) <= 1e-9 * max(abs(p), abs(q)) for p, q in zip(x, y, strict=True))


def _conclusions(
    quantity: Resolution, lettered: Mapping[str, Card], groups: Sequence[Sequence[str]]
) -> Iterator[str]:
    """State which recipes are equal, and where one number has two meanings."""
    for group in groups:
        if len(group) > 1:
            everyone = len(group) == len(lettered)
            yield f"     therefore {'all' if everyone else _listed(group)} are equal"
    stated = {
        _text(lettered[letter], key)
        for key in quantity.needs[:1]
        for group in groups
        for letter in group
    }
    if len(stated) == 1 and len(groups) > 1:
        first, *others = map(_listed, groups)
        value = f"{quantity.needs[0]} {stated.pop()} of {first}"
        yield f"     therefore {value} differs from that of {', and from that of '.join(others)}"


def _listed(letters: Sequence[str]) -> str:
    *others, last = letters
    return f"{', '.join(others)} and {last}" if others else last
