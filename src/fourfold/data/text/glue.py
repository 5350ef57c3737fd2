"""DataModule for the nine tasks of GLUE (Wang et al. 2018), which reads GLUE's files."""

from contextlib import suppress
from dataclasses import field
from typing import Literal, NamedTuple

from fourfold.core.validation import check_choice
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.base import text_data
from fourfold.data.text.sequence_classification import FixedData
from fourfold.errors import InputError
from fourfold.text_files import resolve
from fourfold.tokenization.training import TokenizerConfig


class GlueTask(NamedTuple):
    """Columns and classes of the files of one GLUE task.

    A column is a name in the header, or an index in files without a header. The classes are in the
    order of GLUE's class numbers, and empty if the task is a regression. The metric is that of the
    test that papers report.
    """

    text: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...]
    metric: str = "accuracy"


_SENTENCES = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS = {
    "CoLA": GlueTask((3,), 1, _BINARY, "mcc"),  # no header
    "SST-2": GlueTask(("sentence",), "label", _BINARY),
    "MRPC": GlueTask(("#1 String", "#2 String"), "Quality", _BINARY, "f1"),
    "STS-B": GlueTask(_SENTENCES, "score", (), "spearman"),
    "QQP": GlueTask(("question1", "question2"), "is_duplicate", _BINARY, "f1"),
    "MNLI": GlueTask(_SENTENCES, "gold_label", ("entailment", "neutral", "contradiction")),
    "QNLI": GlueTask(("question", "sentence"), "label", _ENTAILMENT),
    "RTE": GlueTask(_SENTENCES, "label", _ENTAILMENT),
    "WNLI": GlueTask(_SENTENCES, "label", _BINARY),
}
GlueTaskName = Literal["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]


@text_data
class GlueData(FixedData):
    """DataModule for one task of GLUE: train.tsv for training, dev.tsv for validation and test.

    The labels of GLUE's test.tsv are not public. Papers and model cards therefore report scores on
    dev.tsv.

    Args:
        task: Name of the task, such as "SST-2".
        folder: Folder with `TASK/train.tsv` and `TASK/dev.tsv`, plain or .gz; also looked up under
            $FOURFOLD_DATA.
        dev: Name without suffix of the file for validation and test, such as "dev_mismatched" of
            MNLI; None means "dev_matched" for MNLI and "dev" for the other tasks.

    Example:
        >>> GlueData("MNLI").split_sources["val"]
        'glue/MNLI/dev_matched.tsv'
    """

    drop_uneven = True  # a line in train.tsv of QQP has 3 of 6 fields

    val: str = field(init=False)
    task: GlueTaskName  # type: ignore[misc]  # the fields before it are no arguments
    folder: str = "glue"
    dev: str | None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        check_choice("task", self.task, tuple(GLUE_TASKS))
        columns = GLUE_TASKS[self.task]
        self.text, self.label = list(columns.text), columns.label
        self.classes, self.regression = list(columns.classes) or None, not columns.classes
        dev = self.dev or ("dev_matched" if self.task == "MNLI" else "dev")
        self.train = f"{self.folder}/{self.task}/train.tsv"
        self.val = self.test = f"{self.folder}/{self.task}/{dev}.tsv"
        super().__post_init__(tokenizer)

    def _read_file(self, file: str) -> TextTable:
        """Read the table in a file, or in the compressed file of the same name plus .gz."""
        with suppress(InputError):
            resolve(file + ".gz")
            file += ".gz"
        return super()._read_file(file)
