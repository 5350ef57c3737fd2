"""Comparison of recipe cards: differing values, and derived quantities under their conventions.

A recipe card holds the hyperparameters of one published training and the convention of each, such
as the formula of a length penalty.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

from fourfold.reproduce.cells import format_number
from fourfold.reproduce.recipe_cards.cards import KEYS, MEANINGS, Card
from fourfold.reproduce.recipe_cards.conventions import RESOLVED, Resolution

OPEN = "(open)"  # the source does not state the value
ABSENT = "-"  # the key does not apply to the task


def compare(recipes: Sequence[Card]) -> list[str]:
    """Compare two to 26 recipe cards, each of which is named by a letter from A on.

    Returns:
        The lines to print: titles, table of differing values, derived quantities, notes, and equal
        values.
    """
    lettered = dict(zip(ascii_uppercase, recipes, strict=False))
    lines = []
    for letter, card in lettered.items():
        lines += [f"{letter}  {card.name}: {card.title}", f"   {card.source}"]
    keys = [key for key in KEYS if any(key in card.values for card in recipes)]
    differing = [key for key in keys if len({_text(card, key) for card in recipes}) > 1]
    rows = [["", *lettered], *([key, *(_noted(c, key) for c in recipes)] for key in differing)]
    width = max(24, *(len(text) + 2 for row in rows for text in row))
    lines.append("")
    for key, *values in rows:
        lines.append(f"{key:<26}{''.join(f'{x:<{width}}' for x in values)}".rstrip())
    if not differing:
        lines.append("the recipes do not differ")
    if derived := list(_derived(lettered)):
        lines += ["", "Derived quantities under the convention of each recipe", *derived]
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


def _text(card: Card, key: str) -> str:
    """Format the value of a key; ABSENT if the key does not apply, OPEN if no value is stated."""
    value = card.values.get(key, ABSENT if card.lacks(key) else OPEN)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _noted(card: Card, key: str) -> str:
    """Format the value of a key, followed by * if the card has a note on the value."""
    return _text(card, key) + "*" * (key in card.notes)


def _derived(lettered: Mapping[str, Card]) -> Iterator[str]:
    """Iterate over the lines to print on derived quantities that are not equal in all cards.

    The quantities are those of `RESOLVED`. A quantity that is equal in all cards is also shown if
    the hyperparameters that it is derived from are not equal.

    Args:
        lettered: Cards by letter.
    """
    explained: set[str] = set()
    for quantity in RESOLVED:
        results = {
            letter: result
            for letter, card in lettered.items()
            if (result := quantity.of(card.values)) is not None
        }
        groups = _groups(results)
        inputs = quantity.needs or quantity.optional
        first, *others = ([card.values.get(key) for key in inputs] for card in lettered.values())
        is_same = groups[:1] == [list(lettered)] and all(other == first for other in others)
        if not groups or is_same:
            continue
        yield quantity.title
        keys = (*quantity.needs, *quantity.optional)
        for letter, card in lettered.items():
            missing = ABSENT if any(card.lacks(key) for key in quantity.needs) else "not stated"
            text = ", ".join(map(format_number, results.get(letter, ()))) or missing
            values = ", ".join(f"{key} {_noted(card, key)}" for key in keys if key in card.values)
            yield f"  {letter}  {text}" + (f"   from {values}" if values else "")
        for key in keys:
            for value in (card.values.get(key) for card in lettered.values()):
                if value in MEANINGS.get(key, {}) and value not in explained:
                    explained.add(value)
                    yield f"     {value}: {MEANINGS[key][value]}"
        yield from _conclusions(quantity, lettered, groups)


def _groups(results: Mapping[str, tuple[float, ...]]) -> list[list[str]]:
    """Group the cards for which a derived quantity is equal.

    Args:
        results: Numbers of the quantity by letter of the card.

    Returns:
        The letters of the cards of each group.
    """
    groups: list[list[str]] = []
    for letter, numbers in results.items():
        for group in groups:
            if all(map(math.isclose, results[group[0]], numbers)):
                group.append(letter)
                break
        else:
            groups.append([letter])
    return groups


def _conclusions(
    quantity: Resolution, lettered: Mapping[str, Card], groups: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Iterate over sentences that say for which cards a derived quantity is equal or different.

    Args:
        quantity: Derived quantity.
        lettered: Cards by letter.
        groups: Letters of the cards for which the quantity is equal.
    """
    for group in groups:
        if len(group) > 1:
            everyone = len(group) == len(lettered)
            yield f"     therefore {'all' if everyone else _listed(group)} are equal"
    resolved = [lettered[letter] for group in groups for letter in group]
    for key in quantity.needs[:1]:
        stated = {_text(card, key) for card in resolved}
        if len(stated) == 1 and len(groups) > 1:
            first, *others = map(_listed, groups)
            rest = ", and from that of ".join(others)
            yield f"     therefore {key} {stated.pop()} of {first} differs from that of {rest}"


def _listed(letters: Sequence[str]) -> str:
    """Join letters as in "A, B and C"."""
    *others, last = letters
    return f"{', '.join(others)} and {last}" if others else last
