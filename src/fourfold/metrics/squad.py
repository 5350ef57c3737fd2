"""Answers to questions, by the official rules of SQuAD (Rajpurkar et al. 2016 and 2018)."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fourfold.metrics.by_row import ByRow


class Answer(NamedTuple):
    """What one window of a context gives for a question.

    Args:
        score: Sum of the two logits of the span; -inf where the window has none.
        text: The span.
        null: Sum of the two logits of "no answer".
    """

    score: float
    text: str
    null: float


def normalise(text: str) -> list[str]:
    """The words that count: lower case, without punctuation and articles."""
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def exact_match(guess: str, truth: str) -> float:
    """1 if both say the same words in the same order."""
    return float(normalise(guess) == normalise(truth))


def overlap(guess: str, truth: str) -> float:
    """F1 of the words; of a question without an answer 1 if both are empty."""
    a, b = normalise(guess), normalise(truth)
    if not a or not b:
        return float(a == b)
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b))


class AnswerScores(ByRow):
    """EM and F1 of the best answer over all windows of each question's context.

    Args:
        may_be_none: Whether "no answer" may be given (SQuAD 2.0): where it scores higher.
    """

    def __init__(self, may_be_none: bool = False) -> None:
        super().__init__()
        self.may_be_none = may_be_none

    def update(self, rows: list[tuple[int, int]], answers: list[Answer]) -> None:
        """Add answers of windows, each named by its question and its number there."""
        self.rows.update(zip(rows, answers, strict=True))

    def best(self) -> dict[int, str]:
        """The answer to each question."""
        spans: dict[int, Answer] = {}
        nulls: dict[int, float] = {}
        for (question, _), answer in sorted(self.gather().items()):
            if question not in spans or answer.score > spans[question].score:
                spans[question] = answer
            nulls[question] = min(nulls.get(question, answer.null), answer.null)
        return {
            question: "" if self.may_be_none and nulls[question] > found.score else found.text
            for question, found in spans.items()
        }

    def compute(self, truths: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """exact_match and f1 from 0 to 1, each question against the truth it is nearest to.

        Args:
            truths: For each question of the split the answers that count; none means that it has
                no answer.
        """
        best = self.best()
        pairs = [(best[q], truths[q] or [""]) for q in sorted(best)]
        n = max(1, len(pairs))
        return {
            "exact_match": sum(max(exact_match(g, t) for t in ts) for g, ts in pairs) / n,
            "f1": sum(max(overlap(g, t) for t in ts) for g, ts in pairs) / n,
        }
