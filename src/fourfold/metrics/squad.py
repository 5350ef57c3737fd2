"""SquadScores: exact match and F1 of the best answer over all windows of a context (SQuAD)."""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fourfold.metrics.base import RowMetric


class Answer(NamedTuple):
    """Predicted answer in a window of a context, "" with the score -inf without an allowed span.

    `score` is the sum of its start and end logits, and `null` that of "no answer" in the window.
    """

    score: float
    text: str
    null: float


def rank_answers(
    answers: Iterable[tuple[int, Answer]], allow_no_answer: bool
) -> dict[int, list[tuple[str, float]]]:
    """Merge the answers from all windows of each question's context, and rank them by score.

    Answers to a question with the same text keep the highest of their scores. With
    `allow_no_answer`, the text "" stands for "no answer", with the smallest `Answer.null`.

    Example:
        >>> windows = [(0, Answer(7.5, "in 1889", 1.2)), (0, Answer(3.1, "Paris", 4.0))]
        >>> rank_answers(windows, allow_no_answer=True)
        {0: [('in 1889', 7.5), ('Paris', 3.1), ('', 1.2)]}
    """
    scores: dict[int, dict[str, float]] = {}
    null_scores: dict[int, float] = {}
    for question, answer in answers:
        by_text = scores.setdefault(question, {})
        by_text[answer.text] = max(by_text.get(answer.text, -math.inf), answer.score)
        null_scores[question] = min(null_scores.get(question, math.inf), answer.null)
    for question, by_text in scores.items():
        by_text.pop("", None)  # the answer of a window without any allowed span
        if allow_no_answer:
            by_text[""] = null_scores[question]
    return {
        question: sorted(scores[question].items(), key=lambda item: item[1], reverse=True)
        for question in sorted(scores)
    }


class SquadScores(RowMetric):
    """Exact match (EM) and F1 of the best answer over all windows of each question's context.

    The scores are those of SQuAD 1.1 (Rajpurkar et al. 2016, arXiv:1606.05250), or with
    `allow_no_answer` of SQuAD 2.0 (Rajpurkar et al. 2018, arXiv:1806.03822), which predicts "no
    answer" where it scores higher than every span.
    """

    def __init__(self, allow_no_answer: bool = False) -> None:
        super().__init__()
        self.allow_no_answer = allow_no_answer

    def update(self, rows: list[tuple[int, int]], answers: list[Answer]) -> None:
        """Add the predicted answers of a batch; a row is a pair of question and window."""
        self.rows += zip(rows, answers, strict=True)

    def best_answers(self) -> dict[int, str]:
        """Return the predicted answer to each question by its index in the split."""
        answers = ((question, x) for (question, _), x in sorted(self.gather().items()))
        ranked = rank_answers(answers, self.allow_no_answer)
        return {question: best[0][0] if best else "" for question, best in ranked.items()}

    def compute(self, references: Sequence[Sequence[str]] = ()) -> dict[str, float]:
        """Return exact_match and f1 by name, means over all questions, from 0 to 1.

        `references` has the accepted answers of each question of the split, of which the best
        counts.
        """
        found = [
            answer_scores(text, references[question], self.allow_no_answer)
            for question, text in self.best_answers().items()
        ]
        exact, f1 = (sum(column) / len(found) for column in zip(*found, strict=True))
        return {"exact_match": exact, "f1": f1}


def answer_scores(
    text: str, references: Sequence[str], allow_no_answer: bool
) -> tuple[float, float]:
    """Return exact match and F1 of an answer, the highest over its references.

    Case, punctuation and articles do not count. In the official script of SQuAD 1.1, an answer in
    which nothing else is left has the F1 0, even if it equals a reference. The script of SQuAD 2.0
    (`allow_no_answer`) ignores such references, and without any other reference, both scores are 1
    for such an answer.

    Example:
        >>> answer_scores("The Eiffel tower", ["Eiffel", "tower in Paris"], allow_no_answer=False)
        (0.0, 0.6666666666666666)
    """
    words = _words(text)
    accepted = [x for x in map(_words, references) if x or not allow_no_answer] or [[]]
    exact = float(words in accepted)
    if allow_no_answer and not words:
        return exact, exact
    n_common = [(Counter(words) & Counter(reference)).total() for reference in accepted]
    f1 = (2 * n / max(1, len(words) + len(x)) for n, x in zip(n_common, accepted, strict=True))
    return exact, max(f1)


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII punctuation and English articles."""
    plain = text.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
