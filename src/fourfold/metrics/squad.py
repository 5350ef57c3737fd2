"""SquadScores: exact match and F1 of extractive question answering, by SQuAD's official rules."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fourfold.metrics.base import RowMetric


class Answer(NamedTuple):
    """Predicted answer in one window of a context.

    Args:
        score: Sum of the start and end logits of the span; -inf if the window has no span.
        text: Text of the span.
        null: Sum of the start and end logits of "no answer".
    """

    score: float
    text: str
    null: float


def normalize_answer(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation and articles."""
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if both texts are equal after normalization, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words of two texts; if a text is empty, 1 if both texts are empty.

    Example:
        >>> token_f1("the Eiffel Tower", "Eiffel tower in Paris")
        0.6666666666666666
    """
    a = normalize_answer(prediction)
    b = normalize_answer(answer)
    if not a or not b:
        return float(a == b)
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b))


class SquadScores(RowMetric):
    """Exact match (EM) and F1 of the best answer over all windows of each question's context.

    Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822).

    Args:
        allow_no_answer: Predict "no answer" where it scores higher than every span (SQuAD 2.0).
    """

    def __init__(self, allow_no_answer: bool = False) -> None:
        super().__init__()
        self.allow_no_answer = allow_no_answer

    def update(self, rows: list[tuple[int, int]], answers: list[Answer]) -> None:
        """Add answers of windows; a row is (number of the question, number of its window)."""
        self.rows.update(zip(rows, answers, strict=True))

    def best_answers(self) -> dict[int, str]:
        """Return the predicted answer to each question."""
        spans: dict[int, Answer] = {}
        nulls: dict[int, float] = {}
        for (question, _), answer in sorted(self.gather().items()):
            if question not in spans or answer.score > spans[question].score:
                spans[question] = answer
            nulls[question] = min(nulls.get(question, answer.null), answer.null)
        return {
            question: "" if self.allow_no_answer and nulls[question] > span.score else span.text
            for question, span in spans.items()
        }

    def compute(self, references: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """Return exact_match and f1 from 0 to 1, with the best reference of each question.

        Args:
            references: Accepted answers to each question of the split; none if the question has no
                answer.
        """
        best = self.best_answers()
        pairs = [(best[q], references[q] or [""]) for q in sorted(best)]
        n = max(1, len(pairs))
        return {
            "exact_match": sum(max(exact_match(p, a) for a in answers) for p, answers in pairs) / n,
            "f1": sum(max(token_f1(p, a) for a in answers) for p, answers in pairs) / n,
        }
