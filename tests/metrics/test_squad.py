"""SquadScores against torchmetrics; best window and "no answer"."""

import math
import random

import pytest
from torchmetrics.functional.text import squad

from fourfold.metrics import Answer, SquadScores

WORDS = ["the", "a", "Cat", "cat.", "sat", "(on)", "mat", "An", "1990s", "U.S.", "--"]


def test_scores_equal_torchmetrics() -> None:
    rng = random.Random(0)
    scores = SquadScores()
    references = []
    predictions = []
    for row in range(300):
        prediction = " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))
        answers = [" ".join(["x", *rng.choices(WORDS, k=rng.randint(0, 4))]) for _ in range(2)]
        scores.update([(row, 0)], [Answer(1.0, prediction, 0.0)])
        predictions.append({"prediction_text": prediction, "id": str(row)})
        references.append({"answers": {"answer_start": [0, 0], "text": answers}, "id": str(row)})
    expected = squad(predictions, references)
    result = scores.compute([t["answers"]["text"] for t in references])  # type: ignore[index]
    assert result["exact_match"] * 100 == pytest.approx(float(expected["exact_match"]), abs=1e-3)
    assert result["f1"] * 100 == pytest.approx(float(expected["f1"]), abs=1e-3)


def score(prediction: str, reference: str) -> tuple[float, float]:
    scores = SquadScores()
    scores.update([(0, 0)], [Answer(1.0, prediction, 0.0)])
    found = scores.compute([[reference]])
    return found["exact_match"], found["f1"]


def test_normalization_of_articles_case_and_punctuation() -> None:
    assert score("The  Cat!", "cat") == (1.0, 1.0)
    assert score("theory", "ory") == (0.0, 0.0)  # an article is a complete word
    assert score("the cat sat", "a cat") == (0.0, pytest.approx(2 / 3))
    assert score("", "cat") == score("the", "cat") == (0.0, 0.0)
    assert score("the", "") == (1.0, 1.0)


def test_best_window_gives_the_answer() -> None:
    scores = SquadScores()
    scores.update([(0, 0), (0, 1)], [Answer(3.0, "no", 9.0), Answer(4.0, "yes", 8.0)])
    scores.update([(1, 0)], [Answer(-math.inf, "", 0.0)])
    assert scores.best_answers() == {0: "yes", 1: ""}


def test_no_answer_needs_a_higher_score_in_every_window() -> None:
    scores = SquadScores(allow_no_answer=True)
    scores.update([(0, 0), (0, 1)], [Answer(3.0, "x", 9.0), Answer(4.0, "yes", 3.9)])
    scores.update([(1, 0), (1, 1)], [Answer(3.0, "x", 9.0), Answer(4.0, "no", 4.1)])
    assert scores.best_answers() == {0: "yes", 1: ""}
    assert scores.compute([["yes"], []]) == {"exact_match": 1.0, "f1": 1.0}
