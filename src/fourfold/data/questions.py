"""Questions in the format of SQuAD, versions 1 and 2."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fourfold.core.errors import InputError
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
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: broken JSON ({error.msg}).") from error
    found = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                found += [_question(path, asked, context) for asked in paragraph["qas"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not in the format of SQuAD: {error} is missing.") from error
    if not found:
        raise InputError(f"{path} has no questions.")
    return found


def _question(path: str, asked: dict[str, Any], context: str) -> Question:
    answers = [] if asked.get("is_impossible") else asked["answers"]
    for answer in answers:
        begin, text = answer["answer_start"], answer["text"]
        if not text or context[begin : begin + len(text)] != text:
            raise InputError(
                f"{path}, question {asked['id']}: the answer {text!r} is not in its context at"
                f" character {begin}."
            )
    start = answers[0]["answer_start"] if answers else -1
    texts = [answer["text"] for answer in answers]
    return Question(str(asked["id"]), asked["question"], context, texts, start)
