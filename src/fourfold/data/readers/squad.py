"""Questions, contexts and answers from files in the format of SQuAD 1.1 and 2.0."""

from dataclasses import dataclass
from typing import Any

from fourfold.errors import InputError
from fourfold.text_files import parse_json, read_text


@dataclass(frozen=True)
class Question:
    """Question with the context that contains its answer.

    Args:
        id: Name of the question in the file.
        text: Text of the question.
        context: Text of the context.
        answers: Accepted answers; the first answer is the training target. The list is empty if the
            context has no answer.
        start: Index in `context` of the first character of the first answer; -1 without an answer.
    """

    id: str
    text: str
    context: str
    answers: list[str]
    start: int


def read_squad(path: str) -> list[Question]:
    """Read the questions of a SQuAD file.

    Args:
        path: Plain or compressed file; a relative path may also lie under $FOURFOLD_DATA.

    Raises:
        InputError: If the file is missing, has another format or no question, or if an answer is
            not at its position in the context.
    """
    questions = []
    content = parse_json(read_text(path), path)
    for article in _field(content, "data", list, path):
        for paragraph in _field(article, "paragraphs", list, path):
            context = _field(paragraph, "context", str, path)
            records = _field(paragraph, "qas", list, path)
            questions += [_parse_question(path, record, context) for record in records]
    if not questions:
        raise InputError("the file has no questions", file=path)
    return questions


def _parse_question(path: str, record: Any, context: str) -> Question:
    name = str(_field(record, "id", str | int, path))
    location = f"{path}, question {name}"
    text = _field(record, "question", str, location)
    is_impossible = bool(record.get("is_impossible"))
    answers = []
    starts = []
    for item in [] if is_impossible else _field(record, "answers", list, location):
        start = _field(item, "answer_start", int, location)
        answer = _field(item, "text", str, location)
        if not answer or start < 0 or context[start : start + len(answer)] != answer:
            message = f"the answer {answer!r} is not in the context at character {start}"
            raise InputError(message, file=location)
        answers.append(answer)
        starts.append(start)
    return Question(name, text, context, answers, starts[0] if starts else -1)


def _field(record: Any, key: str, expected: Any, location: str) -> Any:
    """Return the value of a key; raise InputError if it is missing or of another type."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, expected) or isinstance(value, bool):
        problem = f"is {str(value)[:60]!r}" if value is not None else "is missing"
        raise InputError(f"the file is not in SQuAD's format: {key!r} {problem}", file=location)
    return value
