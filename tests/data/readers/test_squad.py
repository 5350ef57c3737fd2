"""Questions from SQuAD files: size of XQuAD, invalid files, answers outside their context."""

import json
from pathlib import Path

import pytest

from fourfold.data.readers.squad import read_squad
from fourfold.errors import InputError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "x.json:1: invalid JSON"),
        (
            '{"data": [{"paragraphs": [{"qas": [{}]}]}]}',
            "not in SQuAD's format: 'context' is missing",
        ),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [3]}]}]}', "not in SQuAD's format"),
        ('{"data": []}', "has no questions"),
    ],
)
def test_invalid_squad_file_raises(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_squad(str(tmp_path / "x.json"))


def test_answer_outside_context_raises(tmp_path: Path) -> None:
    context = "The score was 24-10."
    answer = {"text": "24-10", "answer_start": context.index("24-10") + 1}
    question = {"id": "q3", "question": "What was it?", "answers": [answer]}
    content = {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="question q3: the answer '24-10' is not in the context"):
        read_squad(str(tmp_path / "x.json"))


def test_size_of_xquad(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    questions = read_squad("qa/xquad/xquad.en.json.gz")
    assert len(questions) == 1190
    assert len({question.context for question in questions}) == 240
