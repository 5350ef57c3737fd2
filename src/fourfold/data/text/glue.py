"""GlueData: DataModule for the nine tasks of GLUE (Wang et al. 2018), read from GLUE's files."""

from typing import Any, Literal, NamedTuple

from fourfold.core.validation import check_choice
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.sequence_classification import SequenceData
from fourfold.errors import InputError
from fourfold.text_files import resolve


class GlueTask(NamedTuple):
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
    """DataModule for one task of GLUE: train.tsv for training, dev.tsv for validation and test.

    The labels of GLUE's test.tsv are not public. Papers and model cards therefore report scores on
    dev.tsv.

    Args:
        task: Name of the task.
        folder: Folder with `TASK/train.tsv` and `TASK/dev.tsv`, plain or .gz; also looked up under
            $FOURFOLD_DATA.
        dev: Name without suffix of the file for validation and test; by default dev, or dev_matched
            for MNLI, which also has dev_mismatched.
        options: Arguments of `SequenceData`.

    Raises:
        InputError: If the task is unknown; otherwise as `SequenceData`.
    """

    drop_uneven = True  # a line in train.tsv of QQP has 3 of 6 fields

    def __init__(
        self, task: GlueTaskName, folder: str = "glue", dev: str | None = None, **options: Any
    ) -> None:
        check_choice("task", task, tuple(GLUE_TASKS))
        columns = GLUE_TASKS[task]
        dev_file = f"{folder}/{task}/{dev or ('dev_matched' if task == 'MNLI' else 'dev')}.tsv"
        super().__init__(
            source="files",
            train=f"{folder}/{task}/train.tsv",
            val=dev_file,
            test=dev_file,
            text=list(columns.text),
            label=columns.label,
            classes=list(columns.classes) or None,
            regression=not columns.classes,
            hub=None,
            too_long="truncate",
            draw_seed=0,
            **options,
        )

    def _read_split(self, names: list[str]) -> TextTable:
        """Read one file, or its compressed copy beside it."""
        try:
            resolve(names[0] + ".gz")
        except InputError:
            return super()._read_split(names)
        return super()._read_split([names[0] + ".gz"])
