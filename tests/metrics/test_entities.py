"""Entities by the rules of CoNLL, sentence by sentence."""

import random

import pytest

from fourfold.metrics import TagScores
from fourfold.metrics.tags import entities


@pytest.mark.parametrize(
    ("tags", "found"),
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
def test_entities(tags: str, found: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == set(found)


def conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """The rules of the shared task's script, written out one by one for B, I and O."""
    chunks, begin = set(), None
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


def test_any_sequence_of_tags() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        tags = rng.choices(["O", "B-A", "I-A", "B-B", "I-B"], k=rng.randint(0, 9))
        assert entities(tags) == conlleval(tags), tags


def test_scores() -> None:
    scores = TagScores()
    true = [["B-A", "I-A", "O"], ["B-B", "O", "B-A"]]
    guessed = [["B-A", "I-A", "O"], ["B-A", "O", "O"]]
    scores.update([(0, 0), (1, 0)], true, guessed)
    assert scores.compute() == pytest.approx(
        {"precision": 1 / 2, "recall": 1 / 3, "f1": 0.4, "accuracy": 4 / 6, "f1_A": 0.5, "f1_B": 0}
    )
    assert scores.confusion(["O", "B-A", "I-A", "B-B"]) == [
        [2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0],
    ]  # fmt: skip


def test_parts_of_speech_are_no_entities() -> None:
    scores = TagScores()
    scores.update([(0, 0)], [["NN", "VB", "NN"]], [["NN", "NN", "NN"]])
    assert scores.compute() == {"accuracy": pytest.approx(2 / 3)}


def test_parts_of_speech_may_have_hyphens() -> None:
    scores = TagScores()
    scores.update([(0, 0)], [["-LRB-", "NN", "-RRB-"]], [["-LRB-", "NN", "NN"]])
    assert scores.compute() == {"accuracy": pytest.approx(2 / 3)}


def test_entities_may_have_no_type() -> None:
    """As in BioBERT's files, which know one kind each."""
    scores = TagScores()
    scores.update([(0, 0)], [["B", "I", "O", "B"]], [["B", "I", "O", "O"]])
    assert scores.compute() == pytest.approx(
        {"precision": 1.0, "recall": 0.5, "f1": 2 / 3, "accuracy": 0.75}
    )


def test_a_cut_sentence_is_one_and_a_duplicate_counts_once() -> None:
    scores = TagScores()
    scores.update([(0, 1)], [["I-A", "O"]], [["I-A", "O"]])
    for _ in range(2):
        scores.update([(0, 0)], [["O", "B-A"]], [["O", "B-A"]])
    found = scores.compute()
    assert found["f1"] == 1.0
    scores.reset()
    scores.update([(0, 0), (0, 1)], [["B-A"], ["I-A"]], [["B-A"], ["O"]])
    assert scores.compute()["f1"] == 0.0  # only half of it was found
