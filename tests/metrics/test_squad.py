"""SquadScores against torchmetrics and the official rules; best window and "no answer"."""

import math
import random
import re
import string
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.text import squad

from fourfold.metrics import Answer, SquadScores

WORDS = ["the", "a", "Cat", "cat.", "sat", "(on)", "mat", "An", "1990s", "U.S.", "--"]


def normalize(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def official_f1(prediction: str, reference: str, version: int) -> float:
    """Return `f1_score` of evaluate-v1.1.py or `compute_f1` of evaluate-v2.0.py."""
    guess, gold = normalize(prediction).split(), normalize(reference).split()
    if version == 2 and (len(gold) == 0 or len(guess) == 0):
        return int(gold == guess)
    n_same = sum((Counter(guess) & Counter(gold)).values())
    if n_same == 0:
        return 0
    precision, recall = n_same / len(guess), n_same / len(gold)
    return 2 * precision * recall / (precision + recall)


ANSWERS = st.lists(st.sampled_from([*WORDS, ""]), max_size=4).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(version=st.sampled_from([1, 2]), prediction=ANSWERS, answers=st.lists(ANSWERS, max_size=3))
def test_scores_equal_the_official_rules(version: int, prediction: str, answers: list[str]) -> None:
    """Answers may normalize to nothing, such as "the" and "--"."""
    if version == 1:
        references = answers or ["cat"]  # version 1.1 has no unanswerable questions
    else:
        references = [answer for answer in answers if normalize(answer)] or [""]
    scores = SquadScores(allow_no_answer=version == 2)
    scores.update([(0, 0)], [Answer(1.0, prediction, 0.0)])
    assert scores.compute([answers or references if version == 1 else answers]) == {
        "exact_match": max(normalize(prediction) == normalize(x) for x in references),
        "f1": pytest.approx(max(official_f1(prediction, x, version) for x in references)),
    }


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
    assert score("the", "--") == (1.0, 0.0)  # as in the official script of version 1.1


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
