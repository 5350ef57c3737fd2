"""Entities in tagged words, by the rules of CoNLL's own script and of seqeval.

A tag is O, or a prefix and a type: B-LOC begins an entity, I-LOC goes on in one. An I after another
type, or after O, begins one too. E or L ends one, and S or U is one of a single word. Tags without
such a prefix are parts of speech and no entities.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fourfold.metrics.by_row import ByRow

Entity = tuple[str, int, int]  # type, first word, word after the last
_OF_ENTITIES = re.compile(r"O|[BIESLU](-.*)?")


def entities(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence.

    >>> sorted(entities(["B-LOC", "I-LOC", "O", "I-PER", "B-PER"]))
    [('LOC', 0, 2), ('PER', 3, 4), ('PER', 4, 5)]
    """
    found: set[Entity] = set()
    begin, last, kind = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, current = tag.partition("-")
        goes_on = prefix in ("I", "E", "L") and last in ("B", "I") and current == kind
        if last != "O" and not goes_on:
            found.add((kind, begin, place))
        if not goes_on:
            begin = place
        last, kind = prefix, current
    return found


class TagScores(ByRow):
    """Precision, recall and F1 of entities that are right in both borders and in type.

    A sentence that was cut, since the model reads no more tokens at once, is put together again.
    """

    def update(
        self, rows: list[tuple[int, int]], true: list[list[str]], guessed: list[list[str]]
    ) -> None:
        """Add tags of pieces, each named by its sentence and its number there."""
        self.rows.update(zip(rows, zip(true, guessed, strict=True), strict=True))

    def confusion(self, tags: Sequence[str]) -> list[list[int]]:
        """How often words with each of `tags` (rows) were given each of them (columns)."""
        pairs = Counter[tuple[str, str]]()
        for true, guessed in self.gather().values():
            pairs.update(zip(true, guessed, strict=True))
        return [[pairs[a, b] for b in tags] for a in tags]

    def compute(self) -> dict[str, Any]:
        """precision, recall and f1 over all entities, accuracy over words, and f1 of each type.

        Of parts of speech accuracy alone.
        """
        hits, true, guessed = Counter[str](), Counter[str](), Counter[str]()
        right = words = 0
        are_entities = True
        for _, group in groupby(sorted(self.gather().items()), key=lambda item: item[0][0]):
            pieces = [kept for _, kept in group]
            tags, guesses = ([tag for piece in pieces for tag in piece[side]] for side in (0, 1))
            right += sum(a == b for a, b in zip(tags, guesses, strict=True))
            words += len(tags)
            are_entities &= all(map(_OF_ENTITIES.fullmatch, tags))
            here, there = entities(tags), entities(guesses)
            true.update(kind for kind, _, _ in here)
            guessed.update(kind for kind, _, _ in there)
            hits.update(kind for kind, _, _ in here & there)
        accuracy = right / max(1, words)
        if not are_entities:
            return {"accuracy": accuracy}
        total = hits.total(), true.total(), guessed.total()
        scores = {
            "precision": total[0] / max(1, total[2]),
            "recall": total[0] / max(1, total[1]),
            "f1": 2 * total[0] / max(1, total[1] + total[2]),
            "accuracy": accuracy,
        }
        for kind in sorted(set(true) - {""}):  # a bare B or I has no type
            scores[f"f1_{kind}"] = 2 * hits[kind] / max(1, true[kind] + guessed[kind])
        return scores
