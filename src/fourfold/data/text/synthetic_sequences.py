"""DataModules of generated sequences, which test the memory of causal models.

Shapes: B sequences of a batch, T tokens of a sequence, N pairs of a key and a value.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fourfold.core.validation import check_choice, check_range
from fourfold.data.loading.batches import CausalBatch, SequenceBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.text.base import HasTokenizer, TextDataModule, text_data
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

QUESTION = "?"  # character before the answer in the texts of `RecallData`
N_COPIED = 10  # symbols in a sequence of the copy task
SYMBOLS, BLANK, DELIMITER = "abcdefgh", "-", ":"
KEYS, VALUES = ascii_lowercase, ascii_uppercase
NUMBERS = digits + ascii_lowercase[:10]  # alphabet of the adding problem; "d" is a marked 3
COPIED = SYMBOLS + BLANK + DELIMITER  # alphabet of the copy task
ADDITIONS = ("addition", "reversed_addition")  # tasks with 100 ** `length` problems

# Function draw(n, stream) that returns random numbers in [0, 1), (B, n) float64. `stream` is the
# index of an independent random sequence.
Draw = Callable[[int, int], np.ndarray]


def adding(draw: Draw, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate sequences of the adding problem (Hochreiter and Schmidhuber 1997).

    A sequence has `length` numbers from [0, 1), two of which are marked. The target is the sum of
    the two marked numbers. A model reads tokens, so the numbers are rounded down to tenths. The
    best constant prediction, 0.9, has a squared error of 0.165.

    Returns:
        Inputs (B, length + 2) int64 and sums (B,) float32. The inputs of a sequence are -2 for BOS,
        the indices in `NUMBERS` of its numbers, and -1 for EOS.
    """
    ids = (draw(length, 0) * 10).astype(np.int64)
    marked = draw(length, 1).argsort(axis=1)[:, :2]
    terms = np.take_along_axis(ids, marked, axis=1)  # (B, 2)
    np.put_along_axis(ids, marked, terms + 10, axis=1)
    ids = np.pad(ids, [(0, 0), (1, 1)], constant_values=[(0, 0), (-2, -1)])
    return ids, terms.sum(axis=1).astype(np.float32) / 10


def copy_memory(draw: Draw, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate sequences of the copy task, "copy memory" of Arjovsky et al. 2016.

    An input has 10 symbols, length - 1 blanks, a delimiter and 10 blanks. Its target has length +
    10 blanks, followed by the 10 symbols. The best prediction that does not depend on the symbols
    has a mean loss of 10 log(8) / (length + 20) nats.

    Returns:
        Inputs and targets, both (B, length + 20) int64 indices in `ALPHABETS["copy"]`.
    """
    symbols = (draw(N_COPIED, 0) * len(SYMBOLS)).astype(np.int64)  # (B, 10)
    blanks = np.full((len(symbols), length + N_COPIED), COPIED.index(BLANK))
    ids = np.concatenate([symbols, blanks], axis=1)
    ids[:, N_COPIED + length - 1] = COPIED.index(DELIMITER)
    return ids, np.concatenate([blanks, symbols], axis=1)


def associative_recall(draw: Draw, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate sequences of multi-query associative recall (Arora et al. 2023).

    A sequence has N = length pairs of a key and a value, and then the same pairs in another order.
    The keys of a sequence are different. The values of the second half are the targets, each
    predicted from its key and all earlier tokens. A model without memory has a loss of log(26)
    nats.

    Returns:
        Inputs and targets, both (B, 4N - 1) int64 indices in `ALPHABETS["recall"]`. Targets are -1
        at positions without a target.
    """
    keys = draw(len(KEYS), 0).argsort(axis=1)[:, :length]
    values = len(KEYS) + (draw(length, 1) * len(VALUES)).astype(np.int64)
    pairs = np.stack([keys, values], axis=2)  # (B, N, 2)
    queries = np.take_along_axis(pairs, draw(length, 2).argsort(axis=1)[:, :, None], axis=1)
    targets = np.full((len(keys), 2 * length, 2), -1)
    targets[:, length:, 1] = queries[:, :, 1]
    ids = np.concatenate([pairs, queries], axis=1).reshape(len(keys), -1)
    return ids[:, :-1], targets.reshape(len(keys), -1)[:, 1:]


def addition(problems: np.ndarray, length: int, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Generate the sequences of minGPT's play_math.ipynb: the digits of a, of b and of a + b.

    Args:
        problems: Numbers (B,) of the problems, a 10 ** length + b.
        length: Number of digits of a and of b; the sum has one more.
        step: -1 if the last digit of the sum comes first.

    Returns:
        Inputs and targets, both (B, 3 length) int64. Targets are -1 before the sum.
    """
    a, b = np.divmod(problems, 10**length)
    terms = np.stack([a, b, a + b], axis=1)[:, :, None]
    digits_of = terms // 10 ** np.arange(length + 1)[::-1] % 10  # (B, 3, length + 1)
    ids = np.concatenate([digits_of[:, :2, 1:].reshape(len(a), -1), digits_of[:, 2, ::step]], 1)
    return ids[:, :-1], np.where(np.arange(3 * length) < 2 * length - 1, -1, ids[:, 1:])


# Of each task: function that generates the sequences, alphabet, minimum and maximum of the option
# `length`, and function from this option to the number of tokens of a sequence.
TASKS: dict[str, tuple[Callable[..., Any], str, int, int, Callable[[int], int]]] = {
    "adding": (adding, NUMBERS, 2, 100_000, lambda n: n + 2),
    "copy": (copy_memory, COPIED, 1, 100_000, lambda n: n + 2 * N_COPIED),
    "recall": (associative_recall, KEYS + VALUES, 1, len(KEYS), lambda n: 4 * n - 1),
    "addition": (addition, digits, 1, 3, lambda n: 3 * n),
    "reversed_addition": (partial(addition, step=-1), digits, 1, 3, lambda n: 3 * n),
}


@dataclass(eq=False)
class SyntheticDataset(BatchedDataset):
    """Dataset of one split, which generates a sequence when it is read.

    A sequence is a function of seed, epoch, split and row, so every epoch has new sequences. With
    `problems`, the number of the problem of each row, it is a function of the row only. `token_ids`
    are the ids of the characters of the alphabet, of BOS and of EOS.
    """

    generate: Callable[[Any], tuple[np.ndarray, np.ndarray]]
    token_ids: np.ndarray
    split: int
    order: LengthBucketedOrder
    problems: np.ndarray | None = None

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch | SequenceBatch:
        def draw(n: int, stream: int) -> np.ndarray:
            return uniform(self.order.seed, epoch, rows, n, 3 * self.split + stream)

        indices, targets = self.generate(draw if self.problems is None else self.problems[rows])
        ids = torch.from_numpy(self.token_ids[indices])
        if targets.ndim == 1:
            labels, is_real = torch.from_numpy(targets), torch.ones_like(ids, dtype=torch.bool)
            numbers = torch.from_numpy(rows)
            zeros = torch.zeros_like(ids)
            return SequenceBatch(ids, labels, zeros, is_real, numbers, epoch, position)
        targets = np.where(targets < 0, IGNORE_INDEX, self.token_ids[targets])
        return CausalBatch(ids, torch.from_numpy(targets), epoch=epoch, position=position)


@dataclass(eq=False, repr=False)
class SyntheticSequenceData(HasTokenizer):
    """DataModule of generated sequences.

    The sequences of "copy", "recall" and "adding" are generated anew in each epoch. The additions
    have a finite number of problems in a fixed random order. The first `eval_rows` of them are both
    the validation and the test split, and the next `train_rows` are the training split. A recipe of
    the additions must therefore not select a checkpoint by its validation.

    The task "adding" is a regression for sequence classifiers with `n_classes` 1. If the classifier
    is a causal LM, it also needs `lm_weight` 0. The other tasks are for causal language models,
    whose evaluation also reports exact_match, the share of sequences without a wrong target.

    Args:
        task: "copy" (10 symbols are repeated after a number of steps), "recall" (values are
            recalled by their keys), "adding" (two marked numbers of a sequence are added),
            "addition" (digits of two numbers and of their sum) or "reversed_addition" (the same
            with the last digit of the sum first).
        length: For "copy", the number of steps from the last symbol to the delimiter (length + 20
            tokens). For "recall", the number of pairs, at most 26 (4 length - 1 tokens). For
            "adding", the number of numbers, at least 2 (length + 2 tokens). For the additions, the
            number of digits, at most 3 (3 length tokens).
        train_rows: Number of sequences in a training epoch; less if there are fewer problems.
        eval_rows: Number of sequences of the validation split, and of the test split.
        batch_size: Number of sequences in a batch.

    Example:
        >>> data = SyntheticSequenceData("recall", length=2, batch_size=1)
        >>> data.tokenizer.decode(data.split("test").batch(np.array([0]), 0, 0).ids[0].tolist())
        'uIoXuIo'
    """

    batch_class: ClassVar[type] = CausalBatch
    n_classes: ClassVar[int | None] = None
    has_answers = True  # a causal language model then reports exact_match

    task: Literal["adding", "copy", "recall", "addition", "reversed_addition"] = "copy"
    _: KW_ONLY
    length: int = 10
    train_rows: int = 10_000
    eval_rows: int = 1000
    batch_size: int = 32
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.seed, self.num_workers)
        task, length, eval_rows = self.task, self.length, self.eval_rows
        _, _, minimum, maximum, count_tokens = TASKS[task]
        check_range("length", length, minimum=minimum, maximum=maximum)
        self.n_tokens = count_tokens(length)
        if task == "adding":
            self.batch_class = SequenceBatch  # type: ignore[misc]
            self.n_classes = 1  # type: ignore[misc]
        self.rows = {"train": self.train_rows, "val": eval_rows, "test": eval_rows}
        self.problems: dict[str, np.ndarray] = {}
        if task in ADDITIONS:
            check_range("eval_rows", eval_rows, below=100**length)
            # With 1,000 of 10,000 problems, these are the splits of minGPT's play_math.ipynb.
            order = np.random.RandomState(1337).permutation(100**length)
            test, train = order[:eval_rows], order[eval_rows:][: self.train_rows]
            self.problems = {"train": train, "val": test, "test": test}
            self.rows["train"] = len(train)

    def build(self) -> dict[str, BatchedDataset]:
        task, alphabet, *_ = TASKS[self.task]
        config = TokenizerConfig(kind="char", vocab_size=len(alphabet) + 4)  # 4 special tokens
        self._tokenizer = tokenizer = train_tokenizer(config, [alphabet], mask=False)
        characters = tokenizer.encode(alphabet)
        token_ids = np.array([*characters, tokenizer.bos_id, tokenizer.eos_id], dtype=np.int64)
        generate = partial(task, length=self.length)
        splits: dict[str, BatchedDataset] = {}
        for number, (name, n_rows) in enumerate(self.rows.items()):
            lengths = np.full(n_rows, self.n_tokens)
            order = self.batch_order(name, lengths, max_rows=self.batch_size)
            problems = self.problems.get(name)
            splits[name] = SyntheticDataset(generate, token_ids, number, order, problems)
        return splits


@dataclass(eq=False)
class RecallDataset(BatchedDataset):
    """Dataset of texts of equal length (texts, T + 1), whose only target is the last token."""

    ids: np.ndarray
    order: LengthBucketedOrder

    @property
    def max_length(self) -> int:
        return self.ids.shape[1] - 1

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        ids = torch.from_numpy(self.ids[rows].astype(np.int64))
        targets = ids[:, 1:].clone()
        targets[:, :-1] = IGNORE_INDEX
        options: Any = {"n_bytes": len(rows), "epoch": epoch, "position": position}
        return CausalBatch(ids[:, :-1], targets, **options)


@text_data
class RecallData(TextDataModule):
    """DataModule of a recall task for causal language models.

    A text consists of `distance` random letters, a question mark, and the first letter again. Only
    the last letter is a target. The letter to be recalled is `distance` positions before the
    question mark. A model whose predictions do not depend on this position, such as a model with L
    layers and a window w with L (w - 1) < `distance`, is right by chance only.

    Args:
        distance: Number of positions from the letter to the question mark.
        n_letters: Number of different letters, at most 26. A guess is right with probability 1 /
            n_letters.
        train_rows: Number of training examples.
        eval_rows: Number of examples of the validation split, and of the test split.
        batch_size: Number of examples in a batch.
        tokenizer: Options of the tokenizer, whose kind must be char.
        train: Unused, as are `val` and `test`; the examples depend on `seed`.

    Example:
        >>> data = RecallData(distance=4, batch_size=2)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.ids.shape, int((batch.targets != -100).sum())  # one target for each text
        (torch.Size([2, 5]), 2)
    """

    batch_class = CausalBatch

    distance: int = 16
    n_letters: int = 8
    train_rows: int = 8192
    eval_rows: int = 512
    batch_size: int = 32
    _: KW_ONLY
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(kind="char")
    train: None = None
    val: None = None
    test: None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_choice("data.tokenizer.kind", tokenizer.kind, ("char",))
        check_range("n_letters", self.n_letters, minimum=1, maximum=len(ascii_lowercase))
        self.letters = ascii_lowercase[: self.n_letters]

    def read(self) -> dict[str, list[str]]:
        sizes = {"train": self.train_rows, "val": self.eval_rows, "test": self.eval_rows}
        return {name: self._texts(name, size) for name, size in sizes.items()}

    def _texts(self, name: str, size: int) -> list[str]:
        rng = random.Random(f"{self.seed} {name}")
        words = ["".join(rng.choices(self.letters, k=self.distance)) for _ in range(size)]
        return [word + QUESTION + word[0] for word in words]

    def training_texts(self, raw: Sequence[str]) -> Sequence[str]:
        return [*raw, self.letters]

    def encode(self, name: str, raw: Sequence[str], tokenizer: Tokenizer) -> RecallDataset:
        ids = tokenizer.encode_corpus(raw)[0].reshape(len(raw), -1)
        order = self.batch_order(name, np.ones(len(raw)), max_rows=self.batch_size)
        return RecallDataset(ids, order)
