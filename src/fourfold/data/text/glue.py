"""GlueData: DataModule for the nine tasks of GLUE (Wang et al. 2018), read from GLUE's files."""

from dataclasses import dataclass
from typing import Any, Literal

from fourfold.core.validation import check_choice
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.sequence_classification import SequenceData
from fourfold.errors import InputError
from fourfold.text_files import resolve
from fourfold.tokenization.training import TokenizerConfig


@dataclass(frozen=True)
class GlueTask:
    """Columns and classes of a GLUE task.

    Args:
        text: Columns of the one or two sentences; a number counts from 0 in a table without header.
        label: Column of the class or score.
        classes: Labels in the order of GLUE's class numbers; empty for a regression.
    """

    text: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...]


_SENTENCES = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS = {
    "CoLA": GlueTask((3,), 1, _BINARY),  # no header
    "SST-2": GlueTask(("sentence",), "label", _BINARY),
    "MRPC": GlueTask(("#1 String", "#2 String"), "Quality", _BINARY),
    "STS-B": GlueTask(_SENTENCES, "score", ()),
    "QQP": GlueTask(("question1", "question2"), "is_duplicate", _BINARY),
    "MNLI": GlueTask(_SENTENCES, "gold_label", ("entailment", "neutral", "contradiction")),
    "QNLI": GlueTask(("question", "sentence"), "label", _ENTAILMENT),
    "RTE": GlueTask(_SENTENCES, "label", _ENTAILMENT),
    "WNLI": GlueTask(_SENTENCES, "label", _BINARY),
}
GlueTaskName = Literal["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]


class GlueData(SequenceData):
    """One task of GLUE: train.tsv for training, dev.tsv for both validation and test.

    GLUE's test.tsv has no labels. Papers and model cards therefore report scores on dev.tsv.

    Args:
        task: Name of the task.
        folder: Folder with `TASK/train.tsv` and `TASK/dev.tsv`, plain or .gz; also looked up under
            $FOURFOLD_DATA.
        dev: Name without suffix of the file for validation and test; by default dev, or dev_matched
            for MNLI, which also has dev_mismatched.
        train_rows: Train on this number of rows only, with as equal class counts as possible.
        tokenizer: Tokenizer to train or load; by default a WordPiece.
        max_len: Maximum tokens of a row, special tokens included.
        n_separators: EOS tokens between the sentences of a pair: 1 (BERT) or 2 (RoBERTa).
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch, by default `batch_size`.
        seed: Seed of shuffling, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: If the task is unknown; otherwise as `SequenceData`.
    """

    drop_uneven = True  # a line in train.tsv of QQP has 3 of 6 fields

    def __init__(
        self,
        task: GlueTaskName,
        folder: str = "glue",
        dev: str | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        n_separators: Literal[1, 2] = 1,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        check_choice("task", task, tuple(GLUE_TASKS))
        columns = GLUE_TASKS[task]
        super().__init__(
            source="files",
            text=list(columns.text),
            label=columns.label,
            classes=list(columns.classes) or None,
            regression=not columns.classes,
            train_rows=train_rows,
            tokenizer=tokenizer,
            max_len=max_len,
            n_separators=n_separators,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
        self.folder = f"{folder}/{task}"
        self.dev = dev or ("dev_matched" if task == "MNLI" else "dev")

    def read(self) -> dict[str, TextTable]:
        """Read train.tsv and dev.tsv, the latter as validation and test split."""
        train = self._find_file("train")
        dev = self._find_file(self.dev)
        self.split_sources: dict[str, Any] = {"train": train, "val": dev, "test": dev}
        return super().read()

    def _find_file(self, name: str) -> str:
        path = f"{self.folder}/{name}.tsv"
        try:
            resolve(path + ".gz")
        except InputError:
            return path
        return path + ".gz"
