"""Questions in the format of SQuAD, versions 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fourfold.core.errors import InputError
from fourfold.data.json_text import parse_json
from fourfold.data.sources import read_text


@dataclass(frozen=True)
class Question:
    """A question, and the text that holds its answer.

    Args:
        id: its name in the file.
        text: the question.
        context: the text.
        answers: those that count, the first of them is learned; none if the text does not say.
        start: place of the first answer's first character in `context`, -1 without one.
    """

    id: str
    text: str
    context: str
    answers: list[str]
    start: int


def read_questions(path: str) -> list[Question]:
    """The questions of a file.

    Raises:
        InputError: it is missing, broken or of another form; an answer does not stand at its place
            in the context (names the question).
    """
    found = []
    content = parse_json(read_text(path), path)
    for article in _part(content, "data", list, path):
        for paragraph in _part(article, "paragraphs", list, path):
            context = _part(paragraph, "context", str, path)
            asked = _part(paragraph, "qas", list, path)
            found += [_question(path, question, context) for question in asked]
    if not found:
        raise InputError(f"{path} has no questions.")
    return found


def _question(path: str, asked: Any, context: str) -> Question:
    name = str(_part(asked, "id", str | int, path))
    where = f"{path}, question {name}"
    text = _part(asked, "question", str, where)
    given = [] if asked.get("is_impossible") else _part(asked, "answers", list, where)
    answers, starts = [], []
    for one in given:
        begin, answer = _part(one, "answer_start", int, where), _part(one, "text", str, where)
        if not answer or begin < 0 or context[begin : begin + len(answer)] != answer:
            raise InputError(
                f"{where}: the answer {answer!r} is not in its context at character {begin}."
            )
        answers.append(answer)
        starts.append(begin)
    return Question(name, text, context, answers, starts[0] if starts else -1)


def _part(holder: Any, key: str, kind: Any, where: str) -> Any:
    """What stands under a key, if it is of a kind."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        said = f"is {str(value)[:60]!r}" if value is not None else "is missing"
        raise InputError(f"{where} is not in the format of SQuAD: {key!r} {said}.")
    return value
