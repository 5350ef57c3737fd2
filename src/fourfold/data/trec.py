"""Questions and what they ask for (Li and Roth 2002): `TrecData`."""

from __future__ import annotations

from fourfold.core.errors import InputError
from fourfold.data.pairs import hold_out
from fourfold.data.sequence_classification import SequenceData
from fourfold.data.sources import Rows, read_bytes
from fourfold.data.tokenizer_training import TokenizerConfig


def read_trec(path: str, *, fine: bool) -> Rows:
    """Questions and classes of a file of lines like "LOC:city What is ...", in Latin-1.

    Args:
        path: the file, plain, compressed, or a member of an archive.
        fine: one of fifty classes (LOC:city) rather than of six (LOC).

    Raises:
        InputError: the file is missing, or a line has no class (names the line).
    """
    texts, labels = [], []
    for number, line in enumerate(read_bytes(path).decode("latin-1").splitlines(), start=1):
        label, _, text = line.strip().partition(" ")
        if ":" not in label or not text.strip():
            raise InputError(f"{path}, line {number}: {line[:40]!r} has no class and question.")
        texts.append(text)
        labels.append(label if fine else label.partition(":")[0])
    if not texts:
        raise InputError(f"{path} has no questions.")
    return Rows.of([texts, labels], f"{path}, line")


class TrecData(SequenceData):
    """Questions with six or fifty classes; a part of training is held out for validation.

    Args:
        train: the training file (5,452 questions); a relative name is also looked up under
            $FOURFOLD_DATA.
        test: the test file (500).
        fine: whether to tell fifty classes rather than six.
        val: share of the training questions to hold out.
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, special ones included.
        batch_size: rows of a batch.
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) as `read_trec`; or a class of the test is not in training.
    """

    def __init__(
        self,
        train: str = "text_classification/trec_qc.zip/qc/train.txt",
        test: str = "text_classification/trec_qc.zip/qc/test.txt",
        fine: bool = False,
        val: float = 0.1,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 64,
        batch_size: int = 32,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            source="files", tokenizer=tokenizer, max_len=max_len, batch_size=batch_size,
            seed=seed, num_workers=num_workers,
        )  # fmt: skip
        self.files, self.fine, self.val = (train, test), fine, val

    def read_parts(self) -> dict[str, Rows]:
        """The questions of the splits."""
        train, test = (read_trec(file, fine=self.fine) for file in self.files)
        rest, val = hold_out(train, self.val, "val", n_texts=1)
        return {"train": rest, "val": val, "test": test}
