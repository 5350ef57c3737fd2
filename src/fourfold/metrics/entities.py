"""EntityScores: precision, recall and F1 of named entities, as in conlleval and seqeval.

A tag is O (no entity), or a prefix and a type. B-LOC begins an entity of the type LOC, and I-LOC
continues the entity. An I after O or after another type also begins an entity. The prefixes E and L
mark the last word of an entity. The prefixes S and U mark an entity of one word. Tags without such
a prefix are parts of speech, not entities.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

from fourfold.metrics.base import RowMetric

Entity = tuple[str, int, int]  # type, index of the first word, index after the last word
_ENTITY_TAG = re.compile(r"O|[BIESLU](-.*)?")


def extract_entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence: type, index of the first word, index after the last.

    Example:
        >>> sorted(extract_entities(["B-LOC", "I-LOC", "O", "I-PER", "B-PER"]))
        [('LOC', 0, 2), ('PER', 3, 4), ('PER', 4, 5)]
    """
    entities: set[Entity] = set()
    begin = 0
    last_prefix = "O"
    last_type = ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, entity_type = tag.partition("-")
        continues = (
            prefix in ("I", "E", "L") and last_prefix in ("B", "I") and entity_type == last_type
        )
        if last_prefix != "O" and not continues:
            entities.add((last_type, begin, position))
        if not continues:
            begin = position
        last_prefix = prefix
        last_type = entity_type
    return entities


class EntityScores(RowMetric):
    """Precision, recall and F1 of entities whose boundaries and type are both right.

    The chunks of a sentence that exceeds the maximum length of the model are joined again.
    """

    def update(
        self, rows: list[tuple[int, int]], true: list[list[str]], predicted: list[list[str]]
    ) -> None:
        """Add the tags of a batch of chunks; a row is a pair (sentence, chunk of the sentence)."""
        self.rows += zip(rows, zip(true, predicted, strict=True), strict=True)

    def confusion(self, tags: Sequence[str]) -> list[list[int]]:
        """Return how many words with the true tag `tags[i]` were predicted as `tags[j]`."""
        pairs = Counter[tuple[str, str]]()
        for true, predicted in self.gather().values():
            pairs.update(zip(true, predicted, strict=True))
        return [[pairs[a, b] for b in tags] for a in tags]

    def compute(self) -> dict[str, Any]:
        """Return precision, recall, f1 and f1_TYPE of entities, and the accuracy of words, by name.

        If tags are parts of speech, the accuracy is the only score.
        """
        chunks = sorted(self.gather().items())
        pairs = [pair for _, tags in chunks for pair in zip(*tags, strict=True)]
        accuracy = sum(true == predicted for true, predicted in pairs) / max(1, len(pairs))
        if not all(_ENTITY_TAG.fullmatch(true) for true, _ in pairs):
            return {"accuracy": accuracy}
        n_correct, n_true, n_predicted = (Counter[str]() for _ in range(3))
        for _, group in groupby(chunks, key=lambda chunk: chunk[0][0]):
            sentence = zip(*(tags for _, tags in group), strict=True)  # true and predicted chunks
            true, predicted = (extract_entities(list(chain(*tags))) for tags in sentence)
            n_true.update(entity for entity, _, _ in true)
            n_predicted.update(entity for entity, _, _ in predicted)
            n_correct.update(entity for entity, _, _ in true & predicted)
        scores = {
            "precision": n_correct.total() / max(1, n_predicted.total()),
            "recall": n_correct.total() / max(1, n_true.total()),
            "f1": 2 * n_correct.total() / max(1, n_true.total() + n_predicted.total()),
            "accuracy": accuracy,
        }
        for name in sorted(set(n_true) - {""}):  # a bare B or I has no type
            scores[f"f1_{name}"] = 2 * n_correct[name] / max(1, n_true[name] + n_predicted[name])
        return scores
