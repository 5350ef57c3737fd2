"""DataModule for extractive question answering, and reader of SQuAD 1.1 and 2.0.

Shapes: B windows of a batch, T tokens of the longest window.
"""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from fourfold.core.validation import check_type
from fourfold.data.loading.batches import SpanBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.splits import read_rows
from fourfold.data.text.base import TextDataModule, text_data
from fourfold.data.text.segments import segment_ids
from fourfold.errors import InputError, reading
from fourfold.text_files import parse_json, read_text
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

log = logging.getLogger(__name__)

MAX_WRONG_SHARE = 0.05  # largest share of a split's answers that are not in their tokens


@dataclass(frozen=True)
class Question:
    """Question with its context and the accepted answers.

    Args:
        answers: Accepted answers; the first is the training target. The list is empty if the
            context does not answer the question.
        start: Index in `context` of the first character of the first answer; -1 without an answer.
    """

    id: str
    text: str
    context: str
    answers: list[str]
    start: int


def read_squad(path: str) -> list[Question]:
    """Read the questions of a JSON file in the format of SQuAD 1.1 or 2.0.

    Raises:
        InputError: If the file is missing, has another format or no question, or if the context
            does not contain an answer at the character that the file gives.
    """
    with reading(path):
        questions = [
            _parse_question(path, record, paragraph["context"])
            for article in parse_json(read_text(path), path)["data"]
            for paragraph in article["paragraphs"]
            for record in paragraph["qas"]
        ]
    if not questions:
        raise InputError("the file has no questions", file=path)
    return questions


def _parse_question(path: str, record: Any, context: str) -> Question:
    name, text = str(record["id"]), record["question"]
    records = [] if record.get("is_impossible") else record["answers"]
    answers = [answer["text"] for answer in records]
    starts = [answer["answer_start"] for answer in records]
    check_type("context", context, str)
    check_type("question", text, str)
    for answer, start in zip(answers, starts, strict=True):
        if not answer or start < 0 or not context.startswith(answer, start):
            message = f"the answer {answer!r} is not in the context at character {start}"
            raise InputError(message, file=f"{path}, question {name}")
    return Question(name, text, context, answers, starts[0] if starts else -1)


NO_ANSWER = (0, 0)  # span of a window without the answer: the first token, BOS


@dataclass(frozen=True)
class ContextWindow:
    """Window of a context, together with the question: BOS question EOS window EOS.

    Args:
        question: Index of the question in the split.
        number: Index of the window among the windows of this question.
        ids: Token ids of question and window, special tokens included.
        first: Index in `ids` of the first token of the context.
        offsets: Pair (begin, end) of characters in the context for each context token of the
            window.
        span: Indices in `ids` of the first and the last token of the answer; NO_ANSWER if the
            window does not contain the whole answer.
    """

    question: int
    number: int
    ids: list[int]
    first: int
    offsets: list[tuple[int, int]]
    span: tuple[int, int]

    def text(self, context: str, start: int, end: int) -> str:
        """Return the text of a span of tokens, such as a predicted answer, from its context.

        `start` and `end` (inclusive) are indices in `ids`. White space at both ends is stripped,
        because a token of a byte-level tokenizer may begin with the space before a word.
        """
        begin, _ = self.offsets[start - self.first]
        _, stop = self.offsets[end - self.first]
        return context[begin:stop].strip()


@dataclass(eq=False)
class SpanDataset(BatchedDataset):
    """Dataset of the context windows of one split; each window is one example of a batch."""

    questions: Sequence[Question]
    windows: Sequence[ContextWindow]
    pad_id: int
    order: LengthBucketedOrder

    def __post_init__(self) -> None:
        self.rows = RaggedArray.from_rows([window.ids for window in self.windows])
        self.first = np.array([window.first for window in self.windows])
        self.spans = np.array([window.span for window in self.windows], np.int64)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> SpanBatch:
        ids, mask = self.rows.padded(rows, self.pad_id)  # (B, T)
        segments = segment_ids(self.first[rows], mask)
        is_final_eos = torch.arange(ids.shape[1]) == mask.sum(1, keepdim=True) - 1
        starts, ends = torch.from_numpy(self.spans[rows]).unbind(1)
        context = (segments == 1) & ~is_final_eos
        numbers = torch.from_numpy(rows)
        return SpanBatch(ids, starts, ends, segments, mask, context, numbers, epoch, position)


@text_data
class QuestionData(TextDataModule):
    """DataModule for questions whose answer is a span of a context, in the format of SQuAD.

    A context is divided into overlapping windows if question and context have more than `max_len`
    tokens together. A window that does not contain the whole answer has the target "no answer",
    which is the span of the first token (BOS). Training skips such windows unless `allow_no_answer`
    is True. The number of questions whose answer is in no window is logged. If `val` or `test` is a
    fraction, contexts are held out with all their questions.

    Args:
        train: One or several files, plain or compressed, also looked up under $FOURFOLD_DATA.
        allow_no_answer: Allow questions without an answer (SQuAD 2.0).
        max_len: Maximum number of tokens of question and window together, special tokens included.
        doc_stride: Number of tokens from the beginning of a window to the beginning of the next
            one.
        max_query_length: Maximum number of tokens of a question; longer questions are truncated.
        n_separators: Number of EOS tokens between question and context: 1 (BERT) or 2 (RoBERTa).
        batch_size: Number of windows in a training batch.
        eval_batch_size: Number of windows in a validation or test batch; None means `batch_size`.

    Example:
        >>> data = QuestionData("train-v2.0.json", val="dev-v2.0.json", allow_no_answer=True)
        >>> data.max_len, data.doc_stride
        (384, 128)
    """

    batch_class = SpanBatch
    artifact_names = ("max_len", "n_separators", "allow_no_answer")

    train: str | list[str] = field()
    _: KW_ONLY
    allow_no_answer: bool = False
    max_len: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_separators: Literal[1, 2] = 1
    batch_size: int = 16
    eval_batch_size: int | None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        window = self.max_len - self.max_query_length - 2 - self.n_separators
        if not 1 <= self.doc_stride <= window:  # a longer one would skip tokens between windows
            message = f"must lie between 1 and the {window} context tokens that fit into max_len"
            raise InputError(f"{message}, got {self.doc_stride}", option="doc_stride")

    def read(self) -> dict[str, list[Question]]:
        return read_rows(self.split_sources, read_squad, lambda question: question.context)

    def training_texts(self, raw: Sequence[Question]) -> Sequence[str]:
        contexts = dict.fromkeys(question.context for question in raw)
        return [*contexts, *(question.text for question in raw)]

    def encode(self, name: str, raw: Sequence[Question], tokenizer: Tokenizer) -> SpanDataset:
        unanswered = [question.id for question in raw if not question.answers]
        if unanswered and not self.allow_no_answer:
            message = f"must be true, since {len(unanswered)} questions of the {name} split have no"
            raise InputError(f"{message} answer, such as {unanswered[0]}", option="allow_no_answer")
        queries = tokenizer.encode_batch([question.text for question in raw])
        contexts = list(dict.fromkeys(question.context for question in raw))
        encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
        windows: list[ContextWindow] = []
        for number, (question, query) in enumerate(zip(raw, queries, strict=True)):
            context, offsets = encoded[question.context]
            head = [tokenizer.bos_id, *query[: self.max_query_length]]
            head += [tokenizer.eos_id] * self.n_separators
            size = self.max_len - len(head) - 1
            answer = _answer_tokens(question, offsets)
            # Windows follow until one reaches the end of the context.
            n_strides = max(0, -(-(len(context) - size) // self.doc_stride))
            for count in range(n_strides + 1):
                begin = count * self.doc_stride
                end = min(begin + size, len(context))
                span = NO_ANSWER
                if answer is not None and begin <= answer[0] and answer[1] < end:
                    span = (answer[0] - begin + len(head), answer[1] - begin + len(head))
                ids = [*head, *context[begin:end], head[-1]]
                window = ContextWindow(number, count, ids, len(head), offsets[begin:end], span)
                windows.append(window)
        _check_spans(name, raw, windows)
        if name == "train" and not self.allow_no_answer:
            windows = [window for window in windows if window.span != NO_ANSWER]
        lengths = np.array([len(window.ids) for window in windows])
        order = self.batch_order(name, lengths, max_rows=self.batch_sizes[name])
        return SpanDataset(raw, windows, tokenizer.pad_id, order)


def _check_spans(
    name: str, questions: Sequence[Question], windows: Sequence[ContextWindow]
) -> None:
    """Compare the text of each target span with the answer, and log how many differ or are missing.

    Tokens such as "1889," may hold more than the answer, but too many wrong texts are an error.
    """
    answers = {i: found.answers[0].strip() for i, found in enumerate(questions) if found.answers}
    texts = {
        window.question: window.text(questions[window.question].context, *window.span)
        for window in windows
        if window.span != NO_ANSWER
    }
    differing = [i for i, text in texts.items() if text != answers[i]]
    wrong = [i for i in differing if answers[i] not in texts[i]]
    if len(wrong) > MAX_WRONG_SHARE * len(answers):
        message = f"locates {len(wrong)} of {len(answers)} answers of the {name} split wrongly, as"
        message += f" {texts[wrong[0]]!r} for {answers[wrong[0]]!r}"
        raise InputError(message, option="data.tokenizer")
    if differing:
        text, answer = texts[differing[0]], answers[differing[0]]
        message = "%s: the tokens of %d of %d answers hold another text than the answer: %r for %r"
        log.warning(message, name, len(differing), len(answers), text, answer)
    if missing := [i for i in answers if i not in texts]:
        message = "%s: the answers of %d of %d questions are in no window, such as question %s"
        log.warning(message, name, len(missing), len(answers), questions[missing[0]].id)


def _answer_tokens(question: Question, offsets: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and the last context token that overlap the first answer, or None."""
    if question.start < 0:
        return None
    stop = question.start + len(question.answers[0])
    inside = [i for i, (a, b) in enumerate(offsets) if a < stop and b > question.start]
    return (inside[0], inside[-1]) if inside else None
