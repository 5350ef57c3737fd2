"""Recipe cards side by side: what differs, and what that comes to."""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from fourfold.papers.cells import number
from fourfold.papers.conventions import RESOLVED, Resolution
from fourfold.papers.recipe_cards import KEYS, MEANINGS, Card

OPEN, ABSENT = "(open)", "-"

Numbers = tuple[float, ...]


def compare(recipes: Sequence[Card]) -> list[str]:
    """The lines to print of two to 26 recipes: each has a letter."""
    lettered = dict(zip(ascii_uppercase, recipes, strict=False))
    lines = [line for letter, card in lettered.items()
             for line in (f"{letter}  {card.name}: {card.title}", f"   {card.source}")]  # fmt: skip
    said = [key for key in KEYS if any(key in card.values for card in recipes)]
    differing = [key for key in said if not _same(card.values.get(key, OPEN) for card in recipes)]
    rows = [["", *lettered], *([k, *(_noted(c, k) for c in recipes)] for k in differing)]
    width = max(24, *(len(text) + 2 for row in rows for text in row))
    lines += ["", *(f"{row[0]:<20}{''.join(f'{x:<{width}}' for x in row[1:])}".rstrip()
                    for row in rows)]  # fmt: skip
    if not differing:
        lines.append("nothing differs of what cards speak of")
    if resolved := list(_resolved(lettered)):
        lines += ["", "What numbers come to, once their conventions are resolved", *resolved]
    notes = [f"{letter} {key}: {note}" for letter, card in lettered.items()
             for key, note in card.notes.items()]  # fmt: skip
    if notes:
        lines += ["", "Notes, on what has a *", *notes]
    noted = {key for card in recipes for key in card.notes}
    if same := [f"{key} {_text(recipes[0], key)}{'*' * (key in noted)}" for key in said
                if key not in differing]:  # fmt: skip
        lines += ["", f"The same in {'both' if len(recipes) == 2 else 'all'}: {', '.join(same)}"]
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
    """For each quantity of which a part differs: the results, and what the words mean."""
    meant: set[str] = set()
    for quantity in RESOLVED:
        found = {letter: quantity.of(card.values) for letter, card in lettered.items()}
        groups = _groups(found)
        given = quantity.needs or quantity.optional
        as_given = _same([c.values.get(key) for key in given] for c in lettered.values())
        if not groups or (as_given and len(groups[0]) == len(lettered)):
            continue
        yield quantity.title
        keys = (*quantity.needs, *quantity.optional)
        for letter, card in lettered.items():
            shown = ", ".join(number(x) for x in found[letter] or ()) or _none(quantity, card)
            said = ", ".join(f"{key} {_noted(card, key)}" for key in keys if key in card.values)
            yield f"  {letter}  {shown}" + (f"   from {said}" if said else "")
        words = [(key, card.values.get(key)) for key in keys for card in lettered.values()]
        meanings = [f"     {w}: {MEANINGS[k][w]}" for k, w in words if w in MEANINGS.get(k, {})]
        yield from (line for line in dict.fromkeys(meanings) if line not in meant)
        meant.update(meanings)
        yield from _conclusions(quantity, lettered, groups)


def _none(quantity: Resolution, card: Card) -> str:
    return ABSENT if any(card.lacks(key) for key in quantity.needs) else "not said"


def _groups(found: Mapping[str, Numbers | None]) -> list[list[str]]:
    """The letters of what comes to the same."""
    groups: list[list[str]] = []
    for letter, numbers in found.items():
        if numbers is None:
            continue
        near = (group for group in groups if _close(found[group[0]], numbers))
        if (group := next(near, None)) is None:
            groups.append([letter])
        else:
            group.append(letter)
    return groups


def _close(x: Any, y: Any) -> bool:
    return all(abs(p - q) <= 1e-9 * max(abs(p), abs(q)) for p, q in zip(x, y, strict=True))


def _conclusions(
    quantity: Resolution, lettered: Mapping[str, Card], groups: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Who agrees after all, and where one number means two things."""
    for group in groups:
        if len(group) > 1:
            everyone = len(group) == len(lettered)
            yield f"     so {'they' if everyone else _listed(group)} are the same"
    stated = {_text(lettered[letter], key) for key in quantity.needs[:1]
              for group in groups for letter in group}  # fmt: skip
    if len(stated) == 1 and len(groups) > 1:
        first, *others = map(_listed, groups)
        number_of = f"{quantity.needs[0]} {stated.pop()} of {first}"
        yield f"     so {number_of} is not that of {', nor that of '.join(others)}"


def _listed(letters: Sequence[str]) -> str:
    *others, last = letters
    return f"{', '.join(others)} and {last}" if others else last
