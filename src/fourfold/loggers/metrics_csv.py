"""Logger of the file metrics.csv, which a resumed run continues.

Lightning's CSVLogger deletes metrics.csv if a run is resumed in the same directory. In this module,
"row" means a line of metrics.csv.
"""

import csv
import os
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.atomic_files import atomic_path, disk_errors, set_aside, sync
from fourfold.errors import DiskError
from fourfold.lightning_internals import log_step_metrics


class MetricsCSVLogger(Logger):
    """Logger that appends a row (line) to metrics.csv for each logged step.

    A metric that is logged for the first time adds a column. Every row is written immediately, so
    that a killed run leaves the rows of all logged steps.

    Args:
        folder: Directory of the run, in which metrics.csv is written.
    """

    name = ""  # Lightning requires a name and a version
    version = ""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.file = folder / "metrics.csv"
        self._columns: list[str] | None = None
        self._last_row = ""
        self.n_rows = 0  # in the file, as far as this process knows

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since the run's config.yaml holds the hyper-parameters."""

    @property
    def save_dir(self) -> str:
        return str(self.folder)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a row with the metrics of a step, unless the row equals the previous row.

        Such duplicates occur because Lightning logs a step again after `write_metrics_row` did.
        """
        row = {"step": step, **metrics}
        if repr(row) == self._last_row:
            return
        self._last_row = repr(row)
        if self._columns is None:
            self._columns = self._read()[0]
        new = [name for name in row if name not in self._columns]
        if new:
            columns, rows = self._read()
            self._write([*columns, *new], rows)
        size = self.file.stat().st_size
        try:
            with disk_errors(self.file), self.file.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)
            self.n_rows += 1
        except DiskError:
            os.truncate(self.file, size)  # a part of the row may have been written
            raise

    @rank_zero_only
    def rewind(self, step: int, n_rows: int | None = None) -> None:
        """Remove the rows that a run that is resumed from this step logs again.

        These are the rows of later steps, and the rows after the first `n_rows`: a validation of
        this step may have ended after the checkpoint was saved.
        """
        columns, rows = self._read()
        if columns:
            rows = rows[:n_rows]
            kept = [row for row in rows if row["step"].isdecimal() and int(row["step"]) <= step]
            self._write(columns, kept)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return columns and rows; a damaged file is renamed, an incomplete last row is dropped."""
        if not self.file.exists():
            return [], []
        try:
            with self.file.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file, strict=True)
                columns = list(reader.fieldnames or [])
                rows = list(reader)
            # If the process was killed while it wrote a row, the last columns are missing.
            complete = [None not in row and None not in row.values() for row in rows]
            if columns[:1] == ["step"] and all(complete[:-1]):
                return columns, rows if all(complete) else rows[:-1]
        except (OSError, UnicodeDecodeError, csv.Error):
            pass
        set_aside(self.file, "the file is damaged", "starting a new one")
        return [], []

    def _write(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.file) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        self._columns, self.n_rows = columns, len(rows)


class RewindMetricsCSV(Callback):
    """Callback that removes rows from metrics.csv when training starts.

    The removed rows are those that a resumed or restarted run logs again. When a checkpoint is
    saved, the callback flushes metrics.csv to the disk before the checkpoint, and stores the number
    of its rows in the checkpoint.
    """

    def __init__(self) -> None:
        self._n_rows: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSVLogger):
                logger.rewind(trainer.global_step, self._n_rows)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._n_rows = checkpoint.get("metrics_csv_rows")  # older files lack it

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, MetricsCSVLogger):
                if logger.file.is_file():
                    sync(logger.file)
                checkpoint["metrics_csv_rows"] = logger.n_rows


def write_metrics_row(trainer: Trainer) -> None:
    """Write the current step's row of metrics.csv before a checkpoint of that step is saved.

    Lightning logs after all `on_train_batch_end` hooks. If the process were killed after saving the
    checkpoint and before Lightning logs, the row of this step would be missing in the resumed run.
    """
    loggers = [logger for logger in trainer.loggers if isinstance(logger, MetricsCSVLogger)]
    log_step_metrics(trainer, loggers)
