"""Comparison of recipe cards: values that differ, and quantities derived from the values.

A recipe card holds the hyperparameters of one published training and the convention of each, such
as the formula of a length penalty.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

from fourfold.reproduce.cells import format_number
from fourfold.reproduce.recipe_cards.cards import KEYS, MEANINGS, Card
from fourfold.reproduce.recipe_cards.conventions import RESOLVED

OPEN = "(open)"  # the source does not state the value
ABSENT = "-"  # the key does not apply to the task


def compare(recipes: Sequence[Card]) -> list[str]:
    """Compare two to 26 recipe cards (hyperparameters of trainings), labelled A, B, C and so on."""
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
    same = [
        f"{key} {_text(recipes[0], key)}{'*' * any(key in card.notes for card in recipes)}"
        for key in keys
        if key not in differing
    ]
    if same:
        lines += ["", f"Equal in {'both' if len(recipes) == 2 else 'all'}: {', '.join(same)}"]
    return lines


def _text(card: Card, key: str) -> str:
    """Format the hyperparameter of a recipe card with a given key as text."""
    value = card.values.get(key, ABSENT if card.lacks(key) else OPEN)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _noted(card: Card, key: str) -> str:
    """Format a hyperparameter of a recipe card, followed by * if the card has a note on `key`."""
    return _text(card, key) + "*" * (key in card.notes)


def _derived(lettered: Mapping[str, Card]) -> Iterator[str]:
    """Iterate over the lines to print about derived quantities, such as the peak learning rate."""
    explained: set[object] = set()
    for quantity in RESOLVED:
        results = {letter: quantity.of(card.values) for letter, card in lettered.items()}
        inputs = quantity.needs or quantity.optional
        first, *others = ([card.values.get(key) for key in inputs] for card in lettered.values())
        known = [numbers for numbers in results.values() if numbers is not None]
        are_close = all(all(map(math.isclose, known[0], numbers)) for numbers in known)
        is_same = len(known) == len(lettered) and are_close
        if not known or (is_same and all(other == first for other in others)):
            continue
        yield quantity.title
        keys = (*quantity.needs, *quantity.optional)
        for letter, card in lettered.items():
            missing = ABSENT if any(card.lacks(key) for key in quantity.needs) else "not stated"
            text = ", ".join(map(format_number, results[letter] or ())) or missing
            values = ", ".join(f"{key} {_noted(card, key)}" for key in keys if key in card.values)
            yield f"  {letter}  {text}" + (f"   from {values}" if values else "")
        for key in keys:
            for value in (card.values.get(key) for card in lettered.values()):
                if value in MEANINGS.get(key, {}) and value not in explained:
                    explained.add(value)
                    yield f"     {value}: {MEANINGS[key][value]}"
        if is_same:
            yield "     therefore all are equal"
