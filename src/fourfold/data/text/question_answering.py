"""QuestionData: DataModule for extractive question answering (SQuAD), with windows over contexts.

Shapes: B rows, T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fourfold.data.loading.batch_order import LengthBucketedOrder
from fourfold.data.loading.batches import SpanBatch
from fourfold.data.loading.datamodule import BatchedDataset, batch_sizes
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.splits import SplitSource, read_splits
from fourfold.data.readers.squad import Question, read_squad
from fourfold.data.text.base import TextDataModule
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

NO_ANSWER = (0, 0)  # span of a window without the answer: the first token of the row


@dataclass(frozen=True)
class ContextWindow:
    """Question and a window of its context as a row: BOS question EOS context EOS.

    Args:
        question: Number of the question in the split.
        number: Number of the window in the context.
        ids: Token ids of the row.
        first: Position in the row of the first context token.
        offsets: Characters [begin, end) of the context for each token of the window.
        span: First and last token of the answer in the row; NO_ANSWER if the window does not
            contain the whole answer.
    """

    question: int
    number: int
    ids: list[int]
    first: int
    offsets: list[tuple[int, int]]
    span: tuple[int, int]

    def text(self, context: str, start: int, end: int) -> str:
        """Return the text of the context from token `start` of the row to token `end`, inclusive.

        The first token of a byte-level tokenizer includes the space before it, which is stripped.
        """
        begin, _ = self.offsets[start - self.first]
        _, stop = self.offsets[end - self.first]
        return context[begin:stop].strip()


class SpanDataset(BatchedDataset):
    """Dataset of the context windows of one split.

    Args:
        questions: Questions of the split.
        windows: Rows.
        pad_id: Id of padding.
        order: Arguments of `LengthBucketedOrder`.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        windows: Sequence[ContextWindow],
        pad_id: int,
        **order: Any,
    ) -> None:
        self.questions = questions
        self.windows = windows
        self.pad_id = pad_id
        lengths = np.array([len(window.ids) for window in windows])
        ids = np.array([i for window in windows for i in window.ids], np.int32)
        self.rows = RaggedArray.from_lengths(ids, lengths)
        self.first = np.array([window.first for window in windows])
        self.spans = np.array([window.span for window in windows], np.int64)
        self.order = LengthBucketedOrder(lengths, **order)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> SpanBatch:
        ids, mask = self.rows.padded(rows, self.pad_id)  # (B, T)
        positions = torch.arange(ids.shape[1])
        is_context = (positions >= torch.from_numpy(self.first[rows])[:, None]) & mask
        last = mask.sum(1, keepdim=True) - 1  # position of the final EOS
        starts, ends = torch.from_numpy(self.spans[rows]).unbind(1)
        return SpanBatch(
            ids,
            starts,
            ends,
            segments=is_context.long(),
            mask=mask,
            context=is_context & (positions < last),
            rows=torch.from_numpy(rows),
            epoch=epoch,
            position=position,
        )


class QuestionData(TextDataModule):
    """Questions whose answer is a span of a context, in the format of SQuAD.

    A context that is too long for a row is divided into overlapping windows. In a window that does
    not contain the whole answer, the target is "no answer", the first token of the row. If every
    question has an answer, training skips such windows.

    Args:
        train: One or several files, plain or compressed, also looked up under $FOURFOLD_DATA.
        val: As `train`, or a fraction of its contexts to hold out, with all their questions.
        test: As `val`.
        allow_no_answer: Questions may have no answer (SQuAD 2.0).
        tokenizer: Tokenizer to train or load; by default a WordPiece.
        max_len: Maximum tokens of a row, special tokens included.
        doc_stride: Tokens from the beginning of a window to the beginning of the next.
        max_query_length: Maximum tokens of a question; longer ones are truncated.
        n_separators: EOS tokens between question and context: 1 (BERT) or 2 (RoBERTa).
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch, by default `batch_size`.
        seed: Seed of shuffling, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: If an option is invalid; on setup, if files are missing, empty or corrupted, or
            if an answer is not in its context.
    """

    batch_class = SpanBatch

    def __init__(
        self,
        train: str | list[str],
        val: SplitSource = None,
        test: SplitSource = None,
        allow_no_answer: bool = False,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        n_separators: Literal[1, 2] = 1,
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if n_separators not in (1, 2):
            raise InputError(f"must be 1 or 2, got {n_separators}", option="n_separators")
        window = max_len - max_query_length - 2 - n_separators
        if not 1 <= doc_stride <= window:
            # A longer stride would skip tokens between windows.
            raise InputError(
                f"must lie between 1 and the {window} context tokens of a row with"
                f" max_len={max_len} and max_query_length={max_query_length}, got {doc_stride}",
                option="doc_stride",
            )
        self.split_sources: dict[str, SplitSource] = {"train": train, "val": val, "test": test}
        self.allow_no_answer = allow_no_answer
        self.max_len = max_len
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.n_separators = n_separators
        self.batch_sizes = batch_sizes(batch_size, eval_batch_size)

    def read(self) -> dict[str, list[Question]]:
        """Read the questions of each split."""
        return read_splits(self.split_sources, read_squad, lambda question: question.context)

    def training_texts(self, raw: Sequence[Question]) -> Sequence[str]:
        contexts = dict.fromkeys(question.context for question in raw)
        return [*contexts, *(question.text for question in raw)]

    def encode(self, name: str, raw: Sequence[Question], tokenizer: Tokenizer) -> SpanDataset:
        unanswered = [question.id for question in raw if not question.answers]
        if unanswered and not self.allow_no_answer:
            raise InputError(
                f"must be true, since {len(unanswered)} questions of the {name} split have no"
                f" answer, such as {unanswered[0]}",
                option="allow_no_answer",
            )
        queries = tokenizer.encode_batch([question.text for question in raw])
        contexts = list(dict.fromkeys(question.context for question in raw))
        encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
        windows = [
            window
            for number, (question, query) in enumerate(zip(raw, queries, strict=True))
            for window in self._windows(
                number, question, query, *encoded[question.context], tokenizer
            )
        ]
        is_train = name == "train"
        if is_train and not self.allow_no_answer:
            windows = [window for window in windows if window.span != NO_ANSWER]
        return SpanDataset(
            raw,
            windows,
            tokenizer.pad_id,
            max_rows=self.batch_sizes["train" if is_train else "other"],
            seed=self.seed,
            shuffle=is_train,
        )

    def _windows(
        self,
        number: int,
        question: Question,
        query: list[int],
        context: list[int],
        offsets: list[tuple[int, int]],
        tokenizer: Tokenizer,
    ) -> Iterator[ContextWindow]:
        """Divide the context of a question into windows."""
        eos = tokenizer.eos_id
        head = [tokenizer.bos_id, *query[: self.max_query_length], *[eos] * self.n_separators]
        window_size = self.max_len - len(head) - 1
        answer = _answer_tokens(question, offsets)
        for count, begin in enumerate(range(0, max(1, len(context)), self.doc_stride)):
            end = min(begin + window_size, len(context))
            span = NO_ANSWER
            if answer is not None and begin <= answer[0] and answer[1] < end:
                span = (answer[0] - begin + len(head), answer[1] - begin + len(head))
            ids = [*head, *context[begin:end], eos]
            yield ContextWindow(number, count, ids, len(head), offsets[begin:end], span)
            if end == len(context):
                return

    def questions(self, split: str) -> SpanDataset:
        """Return the dataset of a split with its questions and windows.

        `batch.rows` indexes the windows.
        """
        dataset = self.split(split)
        assert isinstance(dataset, SpanDataset)
        return dataset

    def artifacts(self) -> dict[str, Any]:
        """Return tokenizer, maximum length, separators, and `allow_no_answer`."""
        names = ("max_len", "n_separators", "allow_no_answer")
        return super().artifacts() | {name: getattr(self, name) for name in names}


def _answer_tokens(question: Question, offsets: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and the last context token that contain characters of the answer."""
    if question.start < 0:
        return None
    stop = question.start + len(question.answers[0])
    inside = [i for i, (a, b) in enumerate(offsets) if a < stop and b > question.start]
    return (inside[0], inside[-1]) if inside else None
