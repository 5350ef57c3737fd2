"""metrics.csv: one file a run, which a resumed run goes on writing.

Lightning's CSVLogger deletes the file when a run is resumed in its directory.
"""

import csv
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.files import whole


class MetricsCSV(Logger):
    """Appends a row for each logged step; the columns grow as metrics appear.

    Every row is on the disk at once, so that a killed run has logged all it did.

    Args:
        folder: The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.file = folder, folder / "metrics.csv"
        self._columns: list[str] | None = None
        self._newest = ""  # row that was written, which Lightning may be about to log again

    @property
    def name(self) -> str:
        """Part of Lightning's interface."""
        return ""

    @property
    def version(self) -> str:
        """Part of Lightning's interface."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run's directory."""
        return str(self.folder)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: they stand in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a row, unless it is the last one once more."""
        row = {"step": step, **metrics}
        before, self._newest = self._newest, repr(row)
        if before == self._newest:
            return
        if self._columns is None:
            self._columns = self._read()[0]
        new = [name for name in row if name not in self._columns]
        if new:
            columns, rows = self._read()
            self._write([*columns, *new], rows)
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """Forget what was logged from `step` on: the resumed run logs it again."""
        columns, rows = self._read()
        if columns:
            kept = [row for row in rows if row["step"].isdigit() and int(row["step"]) < step]
            self._write(columns, kept)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self.file.is_file():
            return [], []
        with self.file.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            # A row cut off by a kill lacks its last cells; it is of a step that is run again.
            rows = [row for row in reader if None not in row.values() and None not in row]
            return list(reader.fieldnames or []), rows

    def _write(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with whole(self.file) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        self._columns = columns


class RewindMetrics(Callback):
    """Tells the CSV logger where a run really begins, once the checkpoint is restored."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that begins anew forgets all rows, a resumed one those after its checkpoint."""
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                logger.rewind(trainer.global_step)


def write_row(trainer: Trainer) -> None:
    """Write the row of the batch at hand now, which Lightning does after all `on_train_batch_end`.

    Killed between a checkpoint and the row of its step, a run that goes on from there never would.
    """
    loggers = trainer.loggers
    trainer.loggers = [logger for logger in loggers if isinstance(logger, MetricsCSV)]
    try:
        trainer._logger_connector.update_train_step_metrics()
    finally:
        trainer.loggers = loggers
