"""Two recipe cards side by side: what differs, and what that comes to."""

from collections.abc import Iterator
from typing import Any

from fourfold.papers.cells import number
from fourfold.papers.conventions import RESOLVED
from fourfold.papers.recipe_cards import KEYS, MEANINGS, Card

OPEN = "(open)"


def compare(a: Card, b: Card) -> list[str]:
    """The lines to print."""
    width = max(24, *(len(_text(c, key)) + 2 for c in (a, b) for key in c.values))
    lines = [f"A  {a.name}: {a.title}", f"   {a.source}", f"B  {b.name}: {b.title}",
             f"   {b.source}", ""]  # fmt: skip
    rows = [(key, _text(a, key), _text(b, key)) for key in _differing(a, b)]
    lines += [f"{'':<20}{'A':<{width}}B", *(f"{k:<20}{x:<{width}}{y}" for k, x, y in rows)]
    if not rows:
        lines.append("nothing differs")
    if resolved := list(_resolved(a, b)):
        lines += ["", "What numbers come to, once their conventions are resolved", *resolved]
    notes = [f"{c} {key}: {note}" for c, card in (("A", a), ("B", b))
             for key, note in card.notes.items()]  # fmt: skip
    if notes:
        lines += ["", "Notes", *notes]
    same = [key for key in KEYS if key in a.values and a.values[key] == b.values.get(key, OPEN)]
    if same:
        lines += ["", f"The same in both: {', '.join(f'{k} {_text(a, k)}' for k in same)}"]
    return lines


def _differing(a: Card, b: Card) -> Iterator[str]:
    for key in KEYS:
        there = key in a.values or key in b.values
        if there and a.values.get(key, OPEN) != b.values.get(key, OPEN):
            yield key


def _text(card: Card, key: str) -> str:
    value: Any = card.values.get(key, OPEN)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _resolved(a: Card, b: Card) -> Iterator[str]:
    """For each quantity of which a part differs: both results, and what the words mean."""
    for quantity in RESOLVED:
        keys = (*quantity.needs, *quantity.optional)
        if all(a.values.get(key) == b.values.get(key) for key in keys):
            continue
        found = [quantity.of(card.values) for card in (a, b)]
        if found == [None, None]:
            continue
        yield quantity.title
        for letter, card, numbers in zip("AB", (a, b), found, strict=True):
            shown = "not said" if numbers is None else ", ".join(number(x) for x in numbers)
            said = ", ".join(f"{key} {_text(card, key)}" for key in keys if key in card.values)
            yield f"  {letter}  {shown}" + (f"   from {said}" if said else "")
        yield from _meanings(keys, a, b)
        if None not in found and _close(*found):
            yield "     so they are the same"


def _meanings(keys: tuple[str, ...], a: Card, b: Card) -> Iterator[str]:
    for key in keys:
        words = MEANINGS.get(key, {})
        for word in dict.fromkeys(card.values.get(key) for card in (a, b)):
            if word in words:
                yield f"     {word}: {words[word]}"


def _close(x: Any, y: Any) -> bool:
    return all(abs(p - q) <= 1e-9 * max(abs(p), abs(q)) for p, q in zip(x, y, strict=True))
