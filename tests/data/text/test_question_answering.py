"""Questions with windows over their contexts."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.data import QuestionData
from fourfold.data.text.question_answering import MAX_WRONG_SHARE, NO_ANSWER, read_squad
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "x.json:1: invalid JSON"),
        (
            '{"data": [{"paragraphs": [{"qas": [{}]}]}]}',
            "x.json: the content is invalid: 'context'",
        ),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [3]}]}]}', "the content is invalid"),
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


CONTEXT = "Denver won the game. " * 6 + "The score was 24-10 in Santa Clara."


def question(number: int, answer: str | None, context: str = CONTEXT) -> dict[str, Any]:
    start = context.index(answer) if answer else -1
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {
        "id": f"q{number}",
        "question": "What was it?",
        "answers": answers,
        "is_impossible": answer is None,
    }


def write(path: Path, *questions: dict[str, Any], context: str = CONTEXT) -> str:
    paragraphs = [{"context": context, "qas": list(questions)}]
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return str(path)


def data(file: str, **options: Any) -> QuestionData:
    options = {"max_len": 60, "doc_stride": 12, "max_query_length": 15, **options}
    return QuestionData(file, val=file, tokenizer=TokenizerConfig(kind="char"), **options)


def test_span_of_window_decodes_to_the_answer(tmp_path: Path) -> None:
    found = data(write(tmp_path / "x.json", question(0, "24-10"), question(1, "Denver")))
    for split in ("train", "val"):
        dataset = found.split(split)
        batch: Any = dataset.batch(np.arange(len(dataset)), 0, 0)
        for row, window in enumerate(dataset.windows):
            true = dataset.questions[window.question]
            start, end = int(batch.starts[row]), int(batch.ends[row])
            if (start, end) != NO_ANSWER:
                assert window.text(true.context, start, end) == true.answers[0]
                assert batch.context[row, start : end + 1].all()
            positions = np.flatnonzero(batch.context[row])
            assert len(positions) == len(window.offsets)
            assert batch.segments[row, positions].all()
            text = window.text(true.context, int(positions[0]), int(positions[-1]))
            assert text in true.context
            assert batch.mask[row].sum() == len(window.ids) <= 60


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe", "wordpiece"])
def test_answer_has_no_leading_space(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"))
    config = TokenizerConfig(kind=kind, vocab_size=290)
    dataset = QuestionData(file, val=file, tokenizer=config, max_len=200).split("val")
    (window,) = dataset.windows
    assert window.text(CONTEXT, *window.span) == "24-10"


def test_windows_cover_the_context(tmp_path: Path) -> None:
    dataset = data(write(tmp_path / "x.json", question(0, "24-10"))).split("val")
    seen = {begin for window in dataset.windows for begin, _ in window.offsets}
    assert seen == set(range(len(CONTEXT)))
    numbers = [window.number for window in dataset.windows]
    assert numbers == list(range(len(numbers)))
    begins = [window.offsets[0][0] for window in dataset.windows]
    assert {b - a for a, b in pairwise(begins)} == {12}


def test_training_skips_windows_without_answer_unless_no_answer_is_allowed(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"), question(1, "Denver"))
    all_windows = data(file).split("val").windows
    with_answer = {(w.question, w.number) for w in all_windows if w.span != NO_ANSWER}
    assert {number for number, _ in with_answer} == {0, 1}
    assert len(with_answer) < len(all_windows)
    trained = data(file).split("train").windows
    assert {(w.question, w.number) for w in trained} == with_answer
    assert len(trained) == len(with_answer)
    assert NO_ANSWER not in [w.span for w in trained]
    with_null = data(file, allow_no_answer=True)
    assert len(with_null.split("train")) == len(all_windows)
    unanswered = data(write(tmp_path / "y.json", question(1, None)), allow_no_answer=True)
    spans = [w.span for w in unanswered.split("train").windows]
    assert len(spans) > 1
    assert set(spans) == {NO_ANSWER}


def test_question_without_answer_raises_unless_allowed(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json", question(0, "24-10"), question(1, None))
    with pytest.raises(InputError, match=r"allow_no_answer must be true, since 1 .*, such as q1"):
        data(file).setup()


def test_doc_stride_that_skips_tokens_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"doc_stride must lie between 1 and the 42 .*got 50"):
        data(write(tmp_path / "x.json", question(0, "24-10")), doc_stride=50)


WORDS = "In 1889 A met B, then [C] moved to Amsterdam (Noord-Holland) and paid $5 or 7 % of it."
ANSWERS = ("1889", "A", "B", "C", "Amsterdam", "Noord-Holland", "$5", "7 %", "In", "it")
BYTES = {"type": "ByteLevel", "use_regex": True, "trim_offsets": True}


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("post_processor", ["ByteLevel", "RobertaProcessing", None])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("first", ["Whitespace", "WhitespaceSplit", "BertPreTokenizer", None])
def test_spans_are_the_answers_whatever_the_tokenizer_trims(
    first: str | None, prefix: bool, post_processor: str | None, trim: bool, tmp_path: Path
) -> None:
    questions = [question(i, answer, WORDS) for i, answer in enumerate(ANSWERS)]
    file = write(tmp_path / "x.json", *questions, context=WORDS)
    config = TokenizerConfig("byte_bpe", vocab_size=300)
    description = json.loads(train_tokenizer(config, [WORDS] * 3, mask=False).to_str())
    steps = [{"type": first}] if first else []
    steps.append(BYTES | {"add_prefix_space": prefix})  # type: ignore[arg-type]
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    options = {"sep": ["</s>", 2], "cls": ["<s>", 1]} if post_processor != "ByteLevel" else {}
    if post_processor:
        description["post_processor"] = (
            BYTES
            | {"type": post_processor, "add_prefix_space": prefix, "trim_offsets": trim}
            | options
        )
    (tmp_path / "t.json").write_text(json.dumps(description))
    loaded = TokenizerConfig(file=str(tmp_path / "t.json"))
    dataset = QuestionData(file, val=file, tokenizer=loaded, max_len=300).split("train")
    texts = {w.question: w.text(WORDS, *w.span) for w in dataset.windows}
    exact = first in ("Whitespace", "BertPreTokenizer")  # these separate punctuation from words
    assert len(texts) == len(ANSWERS)
    for number, answer in enumerate(ANSWERS):
        assert texts[number] == answer or (answer in texts[number] and not exact)


@pytest.mark.parametrize("n_wrong", [0, 1, 2])
def test_answers_that_their_tokens_miss_are_counted_and_above_a_share_an_error(
    n_wrong: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encode = Tokenizer.encode_with_offsets

    def trimmed(self: Tokenizer, texts: Any) -> Any:
        found = encode(self, texts)
        cut = [(ids, [(min(a + 1, b), b) for a, b in spans]) for ids, spans in found]
        return cut[:n_wrong] + found[n_wrong:]

    monkeypatch.setattr(Tokenizer, "encode_with_offsets", trimmed)
    contexts = [f"The score number {i} was 24-10 in the city." for i in range(25)]
    paragraphs = [
        {"context": text, "qas": [question(i, "24-10", text)]} for i, text in enumerate(contexts)
    ]
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    found = QuestionData(str(tmp_path / "x.json"), tokenizer=TokenizerConfig("word"))
    if n_wrong > MAX_WRONG_SHARE * 25:
        with pytest.raises(InputError, match=r"data.tokenizer .*2 of 25 .*'4-10' for '24-10'"):
            found.setup()
        return
    found.setup()
    said = [text for text in caplog.messages if "answers" in text]
    message = "train: the tokens of 1 of 25 answers hold another text than the answer: '4-10' for"
    assert [text.startswith(message) for text in said] == [True] * n_wrong


def test_answers_in_no_window_and_wider_tokens_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ("24-10", "Santa", CONTEXT[:60], "Denver won the gam")
    file = write(tmp_path / "x.json", *[question(i, x) for i, x in enumerate(answers)])
    config = TokenizerConfig("word", min_frequency=1)
    found = QuestionData(file, tokenizer=config, max_len=12, doc_stride=1, max_query_length=2)
    windows = found.split("train").windows
    assert {window.question for window in windows} == {0, 1, 3}
    assert caplog.messages[-2:] == [
        "train: the tokens of 1 of 4 answers hold another text than the answer:"
        " 'Denver won the game' for 'Denver won the gam'",
        "train: the answers of 1 of 4 questions are in no window, such as question q2",
    ]
