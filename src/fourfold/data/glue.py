"""The nine tasks of GLUE (Wang et al. 2018), from its own files: `GlueData`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fourfold.core.config import check_word
from fourfold.core.errors import InputError
from fourfold.data.sequence_classification import SequenceData
from fourfold.data.sources import resolve
from fourfold.data.tokenizer_training import TokenizerConfig


@dataclass(frozen=True)
class GlueTask:
    """Columns of a task's files.

    Args:
        text: of the one or two sentences; a number counts from 0 where there is no header.
        label: of the class or score.
        classes: labels in the order of GLUE's own numbers; none of a regression.
    """

    text: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...]


_BOTH = ("sentence1", "sentence2")
_ENTAILS = ("entailment", "not_entailment")
TASKS = {
    "CoLA": GlueTask((3,), 1, ("0", "1")),  # no header
    "SST-2": GlueTask(("sentence",), "label", ("0", "1")),
    "MRPC": GlueTask(("#1 String", "#2 String"), "Quality", ("0", "1")),
    "STS-B": GlueTask(_BOTH, "score", ()),
    "QQP": GlueTask(("question1", "question2"), "is_duplicate", ("0", "1")),
    "MNLI": GlueTask(_BOTH, "gold_label", ("entailment", "neutral", "contradiction")),
    "QNLI": GlueTask(("question", "sentence"), "label", _ENTAILS),
    "RTE": GlueTask(_BOTH, "label", _ENTAILS),
    "WNLI": GlueTask(_BOTH, "label", ("0", "1")),
}

Task = Literal["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]


class GlueData(SequenceData):
    """One task of GLUE: training on train.tsv; dev.tsv is both validation and test.

    GLUE's own test.tsv has no labels, so that papers and model cards report the scores on dev.tsv.

    Args:
        task: which of the nine.
        folder: holds `TASK/train.tsv` and `TASK/dev.tsv`, plain or .gz; a relative name is also
            looked up under $FOURFOLD_DATA.
        dev: file of validation and test, without its ending; by default dev, or dev_matched of
            MNLI, whose other one is dev_mismatched.
        train_rows: learn from so many rows only, as many of each class as can be.
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, special ones included.
        separators: EOS tokens between the sentences of a pair: 1 (BERT) or 2 (RoBERTa).
        batch_size: rows of a training batch.
        eval_batch_size: of a validation or test batch; None = batch_size.
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) as `SequenceData`.
    """

    drop_uneven = True  # QQP's train.tsv has a line with 3 fields of 6

    def __init__(
        self,
        task: Task,
        folder: str = "glue",
        dev: str | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        separators: Literal[1, 2] = 1,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        check_word("task", task, tuple(TASKS))
        found = TASKS[task]
        super().__init__(
            source="files", text=list(found.text), label=found.label,
            classes=list(found.classes) or None, regression=not found.classes,
            train_rows=train_rows, tokenizer=tokenizer, max_len=max_len, separators=separators,
            batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed,
            num_workers=num_workers,
        )  # fmt: skip
        self.place = f"{folder}/{task}"
        self.dev = dev or ("dev_matched" if task == "MNLI" else "dev")

    def read(self) -> dict[str, Any]:
        """Train and dev; the latter twice."""
        files = {name: self._file(name) for name in ("train", self.dev)}
        self.parts = {"train": files["train"], "val": files[self.dev], "test": files[self.dev]}
        return super().read()

    def _file(self, name: str) -> str:
        plain = f"{self.place}/{name}.tsv"
        try:
            resolve(plain + ".gz")
        except InputError:
            return plain
        return plain + ".gz"
