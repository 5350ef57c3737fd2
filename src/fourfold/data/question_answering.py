"""Questions with windows over their contexts: `QuestionData`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import SpanBatch
from fourfold.data.datamodule import BatchDataset, batch_sizes
from fourfold.data.parts import Part, read_parts
from fourfold.data.questions import Question, read_questions
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig


@dataclass(frozen=True)
class Window:
    """A question and a stretch of its context, as a row: BOS question EOS context EOS.

    Args:
        question: its number in the split.
        number: of the window in the context.
        ids: tokens.
        first: place of the stretch's first token in the row.
        offsets: characters [begin, end) of the context for each token of the stretch.
        span: first and last token of the answer in the row, (0, 0) where it is not all there.
    """

    question: int
    number: int
    ids: list[int]
    first: int
    offsets: list[tuple[int, int]]
    span: tuple[int, int]

    def text(self, context: str, start: int, end: int) -> str:
        """What stands in the context from token `start` of the row to token `end`, inclusive."""
        # A byte-level token of a word has the blank before it.
        begin, behind = self.offsets[start - self.first][0], self.offsets[end - self.first][1]
        return context[begin:behind].strip()


class SpanDataset(BatchDataset):
    """One split of windows.

    Args:
        questions: of the split.
        windows: the rows.
        pad_id: id of padding.
        plan: options of `Plan`.
    """

    def __init__(
        self, questions: Sequence[Question], windows: Sequence[Window], pad_id: int, **plan: Any
    ) -> None:
        self.questions, self.windows, self.pad_id = questions, windows, pad_id
        lengths = np.array([len(window.ids) for window in windows])
        ids = np.array([i for window in windows for i in window.ids], np.int32)
        self.rows = Ragged.from_lengths(ids, lengths)
        self.first = np.array([window.first for window in windows])
        self.spans = np.array([window.span for window in windows], np.int64)
        self.plan = Plan(lengths, **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> SpanBatch:
        ids, mask = self.rows.padded(index, self.pad_id)  # (B, T)
        places = torch.arange(ids.shape[1])
        behind = (places >= torch.from_numpy(self.first[index])[:, None]) & mask
        last = mask.sum(1, keepdim=True) - 1  # the closing EOS
        starts, ends = torch.from_numpy(self.spans[index]).unbind(1)
        return SpanBatch(
            ids, starts, ends, behind.long(), mask, behind & (places < last),
            torch.from_numpy(index), epoch, position,
        )  # fmt: skip


class QuestionData(TokenizedData):
    """Questions whose answer is a stretch of a text, in the format of SQuAD.

    A context too long for a row is read in windows that overlap. A window that does not hold the
    answer whole is left out of training; where a question may have no answer, it is "no answer"
    there, the first token of the row.

    Args:
        train: one or several files, plain or compressed; relative names are also looked up under
            $FOURFOLD_DATA.
        val: as `train`, or a fraction of its contexts to hold out, with all their questions.
        test: as `val`.
        may_be_none: whether a question may have no answer (SQuAD 2.0).
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, special ones included.
        stride: tokens from the beginning of a window to that of the next.
        max_question: most tokens of a question; longer ones are cut.
        separators: EOS tokens between question and context: 1 (BERT) or 2 (RoBERTa).
        batch_size: rows of a training batch.
        eval_batch_size: of a validation or test batch; None = batch_size.
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) files are missing, empty or broken; an answer is not in its context.
    """

    batch_class = SpanBatch

    def __init__(
        self,
        train: str | list[str],
        val: Part = None,
        test: Part = None,
        may_be_none: bool = False,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 384,
        stride: int = 128,
        max_question: int = 64,
        separators: int = 1,
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if separators not in (1, 2):
            raise InputError(f"separators is {separators}, but must be 1 or 2.")
        room = max_len - max_question - 2 - separators
        if not 1 <= stride <= room:
            raise InputError(
                f"stride is {stride}, but a window has {room} tokens beside a question of"
                f" max_question={max_question}: text between windows would never be read."
            )
        self.parts: dict[str, Part] = {"train": train, "val": val, "test": test}
        self.may_be_none = may_be_none
        self.max_len, self.stride, self.max_question = max_len, stride, max_question
        self.separators = separators
        self.sizes = batch_sizes(batch_size, eval_batch_size)

    def read(self) -> dict[str, list[Question]]:
        """The questions of the splits."""
        return read_parts(self.parts, read_questions, lambda question: question.context)

    def training_texts(self, raw: Sequence[Question]) -> Sequence[str]:
        return [*dict.fromkeys(q.context for q in raw), *(q.text for q in raw)]

    def encode(self, name: str, raw: Sequence[Question], tokenizer: Tokenizer) -> SpanDataset:
        unanswered = [question.id for question in raw if not question.answers]
        if unanswered and not self.may_be_none:
            raise InputError(
                f"{name}: {len(unanswered)} questions have no answer, such as {unanswered[0]}: set"
                " may_be_none"
            )
        asked = tokenizer.encode_batch([question.text for question in raw])
        contexts = list(dict.fromkeys(question.context for question in raw))
        places = tokenizer.encode_with_places(contexts)
        known = dict(zip(contexts, places, strict=True))
        windows = [
            window
            for number, (question, ids) in enumerate(zip(raw, asked, strict=True))
            for window in self._windows(number, question, ids, *known[question.context], tokenizer)
        ]
        training = name == "train"
        if training and not self.may_be_none:
            # Where each question has an answer, a window without it teaches nothing.
            windows = [window for window in windows if window.span != (0, 0)]
        size = self.sizes["train" if training else "other"]
        return SpanDataset(
            raw, windows, tokenizer.pad_id, max_rows=size, seed=self.seed, shuffle=training
        )

    def _windows(
        self,
        number: int,
        question: Question,
        asked: list[int],
        context: list[int],
        offsets: list[tuple[int, int]],
        tokenizer: Tokenizer,
    ) -> Iterator[Window]:
        eos = tokenizer.eos_id
        head = [tokenizer.bos_id, *asked[: self.max_question], *[eos] * self.separators]
        room = self.max_len - len(head) - 1
        answer = _tokens_of(question, offsets)
        for count, begin in enumerate(range(0, max(1, len(context)), self.stride)):
            end = min(begin + room, len(context))
            span = (0, 0)
            if answer is not None and begin <= answer[0] and answer[1] < end:
                span = (answer[0] - begin + len(head), answer[1] - begin + len(head))
            ids = [*head, *context[begin:end], eos]
            yield Window(number, count, ids, len(head), offsets[begin:end], span)
            if end == len(context):
                return

    def questions(self, split: str) -> SpanDataset:
        """The split with its questions and windows; `batch.index` counts in the latter."""
        dataset = self.split(split)
        assert isinstance(dataset, SpanDataset)
        return dataset

    def artifacts(self) -> dict[str, Any]:
        """Tokenizer, greatest length, separators, and whether there may be no answer."""
        names = ("max_len", "separators", "may_be_none")
        return super().artifacts() | {name: getattr(self, name) for name in names}


def _tokens_of(question: Question, offsets: list[tuple[int, int]]) -> tuple[int, int] | None:
    """First and last token of the context that the answer's characters lie in."""
    if question.start < 0:
        return None
    end = question.start + len(question.answers[0])
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > question.start]
    return (inside[0], inside[-1]) if inside else None
