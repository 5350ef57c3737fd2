"""Entities in IOB1, IOB2, IOBES and BILOU tags against the rules of conlleval; EntityScores."""

import random

import pytest

from fourfold.metrics import EntityScores
from fourfold.metrics.entities import extract_entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)]),
        ("I-A I-A", [("A", 0, 2)]),  # IOB1
        ("B-A B-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A I-B", [("A", 0, 1), ("B", 1, 2)]),
        ("O I-A O I-A", [("A", 1, 2), ("A", 3, 4)]),
        ("B-A I-A E-A S-A", [("A", 0, 3), ("A", 3, 4)]),  # IOBES
        ("B-A I-A L-A U-A", [("A", 0, 3), ("A", 3, 4)]),  # BILOU
        ("S-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("E-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),  # a type with a hyphen
        ("", []),
    ],
)
def test_entities_of_a_sentence(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert extract_entities(tags.split()) == set(expected)


def conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """Return entities by the rules of the shared task's script, for B, I and O."""
    chunks = set()
    begin = None
    for i, tag in enumerate([*tags, "O"]):
        before = tags[i - 1] if i else "O"
        ends = before != "O" and (
            tag == "O" or tag[0] == "B" or before.partition("-")[2] != tag.partition("-")[2]
        )
        if ends:
            assert begin is not None
            chunks.add((before.partition("-")[2], begin, i))
        if tag != "O" and (tag[0] == "B" or before == "O" or ends):
            begin = i
    return chunks


def test_random_tags_agree_with_conlleval() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        tags = rng.choices(["O", "B-A", "I-A", "B-B", "I-B"], k=rng.randint(0, 9))
        assert extract_entities(tags) == conlleval(tags), tags


def test_scores_by_hand() -> None:
    scores = EntityScores()
    true = [["B-A", "I-A", "O"], ["B-B", "O", "B-A"]]
    predicted = [["B-A", "I-A", "O"], ["B-A", "O", "O"]]
    scores.update([(0, 0), (1, 0)], true, predicted)
    assert scores.compute() == pytest.approx(
        {"precision": 1 / 2, "recall": 1 / 3, "f1": 0.4, "accuracy": 4 / 6, "f1_A": 0.5, "f1_B": 0}
    )
    assert scores.confusion(["O", "B-A", "I-A", "B-B"]) == [
        [2, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 1, 0, 0],
    ]


def test_parts_of_speech_have_accuracy_only() -> None:
    scores = EntityScores()
    scores.update([(0, 0)], [["NN", "VB", "NN"]], [["NN", "NN", "NN"]])
    assert scores.compute() == {"accuracy": pytest.approx(2 / 3)}


def test_tags_with_hyphens_may_be_parts_of_speech() -> None:
    scores = EntityScores()
    scores.update([(0, 0)], [["-LRB-", "NN", "-RRB-"]], [["-LRB-", "NN", "NN"]])
    assert scores.compute() == {"accuracy": pytest.approx(2 / 3)}


def test_entities_without_type() -> None:
    """BioBERT's files have one type of entity each, and tags without a type."""
    scores = EntityScores()
    scores.update([(0, 0)], [["B", "I", "O", "B"]], [["B", "I", "O", "O"]])
    assert scores.compute() == pytest.approx(
        {"precision": 1.0, "recall": 0.5, "f1": 2 / 3, "accuracy": 0.75}
    )


def test_chunks_of_a_sentence_are_joined_and_duplicates_dropped() -> None:
    scores = EntityScores()
    scores.update([(0, 1)], [["I-A", "O"]], [["I-A", "O"]])
    for _ in range(2):
        scores.update([(0, 0)], [["O", "B-A"]], [["O", "B-A"]])
    assert scores.compute()["f1"] == 1.0
    scores.reset()
    scores.update([(0, 0), (0, 1)], [["B-A"], ["I-A"]], [["B-A"], ["O"]])
    assert scores.compute()["f1"] == 0.0  # the entity spans both chunks
