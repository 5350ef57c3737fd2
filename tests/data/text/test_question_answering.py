"""Questions with windows over their contexts."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.core.errors import InputError
from fourfold.data import QuestionData
from fourfold.data.questions import read_questions
from fourfold.data.tokenizer_training import TokenizerConfig

CONTEXT = "Denver won the game. " * 6 + "The score was 24-10 in Santa Clara."


def question(number: int, answer: str | None, context: str = CONTEXT) -> dict[str, Any]:
    start = context.index(answer) if answer else -1
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {"id": f"q{number}", "question": "What was it?", "answers": answers,
            "is_impossible": answer is None}  # fmt: skip


def write(path: Path, *questions: dict[str, Any], context: str = CONTEXT) -> str:
    paragraphs = [{"context": context, "qas": list(questions)}]
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return str(path)


def data(file: str, **options: Any) -> QuestionData:
    options = {"max_len": 60, "stride": 12, "max_question": 15, **options}
    return QuestionData(file, val=file, tokenizer=TokenizerConfig(kind="char"), **options)


def test_every_window_that_holds_the_answer_says_where(tmp_path: Path) -> None:
    found = data(write(tmp_path / "x.json", question(0, "24-10"), question(1, "Denver")))
    for split in ("train", "val"):
        dataset = found.questions(split)
        batch: Any = dataset.batch(np.arange(len(dataset)), 0, 0)
        for row, window in enumerate(dataset.windows):
            asked = dataset.questions[window.question]
            start, end = int(batch.starts[row]), int(batch.ends[row])
            if (start, end) != (0, 0):
                assert window.text(asked.context, start, end) == asked.answers[0]
                assert batch.context[row, start : end + 1].all()
            places = np.flatnonzero(batch.context[row])
            assert len(places) == len(window.offsets)
            assert batch.segments[row, places].all()
            text = window.text(asked.context, int(places[0]), int(places[-1]))
            assert text in asked.context
            assert batch.mask[row].sum() == len(window.ids) <= 60


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe", "wordpiece"])
def test_an_answer_has_no_blank_in_front(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"))
    words = TokenizerConfig(kind=kind, vocab_size=290)
    dataset = QuestionData(file, val=file, tokenizer=words, max_len=200).questions("val")
    (window,) = dataset.windows
    assert window.text(CONTEXT, *window.span) == "24-10"


def test_the_windows_cover_the_context(tmp_path: Path) -> None:
    dataset = data(write(tmp_path / "x.json", question(0, "24-10"))).questions("val")
    seen = {place for window in dataset.windows for place, _ in window.offsets}
    assert seen == set(range(len(CONTEXT)))
    numbers = [window.number for window in dataset.windows]
    assert numbers == list(range(len(numbers)))
    begins = [window.offsets[0][0] for window in dataset.windows]
    assert {b - a for a, b in pairwise(begins)} == {12}


def test_windows_without_the_answer_teach_only_where_none_may_be(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"), question(1, "Denver"))
    always, perhaps = data(file), data(file, may_be_none=True)
    assert all(w.span != (0, 0) for w in always.questions("train").windows)
    assert len(perhaps.questions("train")) == len(perhaps.questions("val"))
    none = data(write(tmp_path / "y.json", question(1, None)), may_be_none=True)
    assert {w.span for w in none.questions("train").windows} == {(0, 0)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "line 1: broken JSON"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "not in the format of SQuAD: 'context'"),
        ('{"data": []}', "has no questions"),
    ],
)
def test_broken_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_questions(str(tmp_path / "x.json"))


def test_an_answer_that_is_not_in_its_context(tmp_path: Path) -> None:
    asked = question(3, "24-10")
    asked["answers"][0]["answer_start"] += 1
    with pytest.raises(InputError, match="question q3: the answer '24-10' is not in its context"):
        read_questions(write(tmp_path / "x.json", asked))


def test_a_question_without_an_answer_must_be_allowed(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"), question(1, None))
    with pytest.raises(InputError, match="1 questions have no answer, such as q1: set may_be_none"):
        data(file).setup()


def test_a_gap_between_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stride is 50, but a window has 42 tokens"):
        data(write(tmp_path / "x.json", question(0, "24-10")), stride=50)


def test_xquad(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    asked = read_questions("qa/xquad/xquad.en.json.gz")
    assert len(asked) == 1190
    assert len({question.context for question in asked}) == 240
