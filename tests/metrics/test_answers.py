"""Answers by the rules of SQuAD, against torchmetrics and by hand."""

import math
import random

import pytest
from torchmetrics.functional.text import squad

from fourfold.metrics import Answer, AnswerScores
from fourfold.metrics.answers import exact_match, overlap

WORDS = ["the", "a", "Cat", "cat.", "sat", "(on)", "mat", "An", "1990s", "U.S.", "--"]


def test_any_answers_score_as_in_torchmetrics() -> None:
    rng = random.Random(0)
    scores = AnswerScores()
    truths, guesses = [], []
    for row in range(300):
        guess = " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))
        truth = [" ".join(["x", *rng.choices(WORDS, k=rng.randint(0, 4))]) for _ in range(2)]
        scores.update([(row, 0)], [Answer(1.0, guess, 0.0)])
        guesses.append({"prediction_text": guess, "id": str(row)})
        truths.append({"answers": {"answer_start": [0, 0], "text": truth}, "id": str(row)})
    expected = squad(guesses, truths)
    found = scores.compute([t["answers"]["text"] for t in truths])  # type: ignore[index]
    assert found["exact_match"] * 100 == pytest.approx(float(expected["exact_match"]), abs=1e-3)
    assert found["f1"] * 100 == pytest.approx(float(expected["f1"]), abs=1e-3)


def test_normalisation() -> None:
    assert exact_match("The  Cat!", "cat") == 1.0
    assert exact_match("theory", "ory") == 0.0  # articles are words
    assert overlap("the cat sat", "a cat") == pytest.approx(2 / 3)
    assert overlap("", "cat") == overlap("the", "cat") == 0.0
    assert overlap("the", "") == 1.0


def test_the_best_window_answers() -> None:
    scores = AnswerScores()
    scores.update([(0, 0), (0, 1)], [Answer(3.0, "no", 9.0), Answer(4.0, "yes", 8.0)])
    scores.update([(1, 0)], [Answer(-math.inf, "", 0.0)])
    assert scores.best() == {0: "yes", 1: ""}


def test_no_answer_where_it_scores_higher_in_every_window() -> None:
    scores = AnswerScores(may_be_none=True)
    scores.update([(0, 0), (0, 1)], [Answer(3.0, "x", 9.0), Answer(4.0, "yes", 3.9)])
    scores.update([(1, 0), (1, 1)], [Answer(3.0, "x", 9.0), Answer(4.0, "no", 4.1)])
    assert scores.best() == {0: "yes", 1: ""}
    assert scores.compute([["yes"], []]) == {"exact_match": 1.0, "f1": 1.0}
