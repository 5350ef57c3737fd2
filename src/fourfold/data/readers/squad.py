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
        InputError: If the file is missing, has another format or no question, or if an answer does
            not stand at its position in the context.
    """
    content = parse_json(read_text(path), path)
    try:
        questions = [
            _parse_question(record, paragraph["context"], path)
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for record in paragraph["qas"]
        ]
    except (AttributeError, KeyError, TypeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"the file is not in SQuAD's format: {problem}", file=path) from error
    if not questions:
        raise InputError("the file has no questions", file=path)
    return questions


def _parse_question(record: Any, context: str, path: str) -> Question:
    found = [] if record.get("is_impossible") else record["answers"]
    starts = [answer["answer_start"] for answer in found]
    answers = [answer["text"] for answer in found]
    for start, answer in zip(starts, answers, strict=True):
        if not answer or start < 0 or context[start : start + len(answer)] != answer:
            message = f"the answer {answer!r} is not in the context at character {start}"
            raise InputError(message, file=f"{path}, question {record['id']}")
    return Question(
        str(record["id"]), record["question"], context, answers, starts[0] if starts else -1
    )
