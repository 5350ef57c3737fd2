"""DataModule for the nine tasks of GLUE (Wang et al. 2018), which reads GLUE's files."""

from contextlib import suppress
from typing import Any, Literal, NamedTuple

from fourfold.core.validation import check_choice
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.sequence_classification import SequenceData
from fourfold.errors import InputError
from fourfold.text_files import resolve


class GlueTask(NamedTuple):
    """Columns and classes of the files of one GLUE task.

    Args:
        text: Column of the sentence, or the two columns of a sentence pair: names in the header, or
            indices in files without a header.
        label: Column of the class or of the score, as a name or an index.
        classes: Class names in the files, in the order of GLUE's class numbers; empty if the task
            is a regression.
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
    r"""DataModule for one task of GLUE: train.tsv for training, dev.tsv for validation and test.

    The labels of GLUE's test.tsv are not public. Papers and model cards therefore report scores on
    dev.tsv.

    Args:
        task: Name of the task, such as "SST-2".
        folder: Folder with `TASK/train.tsv` and `TASK/dev.tsv`, plain or .gz; also looked up under
            $FOURFOLD_DATA.
        dev: Name without suffix of the file for validation and test, such as "dev_mismatched" of
            MNLI; None means "dev_matched" for MNLI and "dev" for the other tasks.
        options: Arguments of `LabelledDataModule`, and `train_rows` and `n_separators` of
            `SequenceData`.

    Raises:
        InputError: If the task is unknown or an option is invalid. `setup` raises the error if a
            file is missing, empty or corrupted, or has an invalid label.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "SST-2").mkdir()
        ...     for name in ("train", "dev"):
        ...         rows = "sentence\tlabel\na great film\t1\na dull film\t0\n"
        ...         _ = Path(folder, "SST-2", f"{name}.tsv").write_text(rows)
        ...     data = GlueData("SST-2", folder, batch_size=2)
        ...     data.setup()
        >>> sorted(next(iter(data.val_dataloader())).labels.tolist())
        [0, 1]
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
        """Read the table of a split from its file.

        If a compressed file of the same name with the ending .gz exists, this file is read instead.

        Args:
            names: List with one element, the path of the file without the ending .gz.

        Returns:
            Table with one or two columns of texts, and a last column of labels.
        """
        with suppress(InputError):
            resolve(names[0] + ".gz")
            names = [names[0] + ".gz"]
        return super()._read_split(names)
