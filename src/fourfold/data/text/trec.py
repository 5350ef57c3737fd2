"""TrecData: DataModule for the question classification of TREC (Li and Roth 2002)."""

from typing import Any

from fourfold.data.readers.splits import SplitSource
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.sequence_classification import SequenceData
from fourfold.errors import InputError
from fourfold.text_files import read_bytes


class TrecData(SequenceData):
    """DataModule for questions with six classes, such as LOC, or 50 finer ones, such as LOC:city.

    A line of the files is ``COARSE:fine question`` in Latin-1.

    Args:
        folder: Folder or archive (`trec_qc.zip/qc`) with `train.txt` and `test.txt`, 5,452 and 500
            questions; also looked up under $FOURFOLD_DATA.
        fine: Use the fine classes.
        val: Validation split: fraction of the training questions to hold out, or one or several
            files; None means no validation split.
        options: Arguments of `LabelledDataModule`, and `train_rows` of `SequenceData`.

    Raises:
        InputError: If an option is invalid. `setup` raises the error if a file is missing or a line
            has no label.
    """

    def __init__(
        self,
        folder: str = "text_classification/trec_qc.zip/qc",
        fine: bool = False,
        val: SplitSource = None,
        **options: Any,
    ) -> None:
        super().__init__(
            source="files",
            train=f"{folder}/train.txt",
            val=val,
            test=f"{folder}/test.txt",
            text=0,
            label=1,
            classes=None,
            regression=False,
            hub=None,
            n_separators=1,
            too_long="truncate",
            draw_seed=0,
            **options,
        )
        self.fine = fine

    def _read_split(self, names: list[str]) -> TextTable:
        return TextTable.concat([self._read_file(name) for name in names])

    def _read_file(self, file: str) -> TextTable:
        columns: list[list[str]] = [[], []]
        lines = read_bytes(file).decode("latin-1").removesuffix("\n").split("\n")
        for number, line in enumerate(lines, start=1):
            label, _, question = line.partition(" ")
            coarse, colon, _ = label.partition(":")
            if not colon or not question.strip():
                message = f"must have the form COARSE:fine question, got {line[:40]!r}"
                raise InputError(message, file=file, line=number)
            columns[0].append(question)
            columns[1].append(label if self.fine else coarse)
        return TextTable.from_columns(columns, f"{file}:")
