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

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = MetricsCSVLogger(Path(folder))
        ...     logger.log_metrics({"train/loss": 2.5}, step=1)
        ...     logger.log_metrics({"val/loss": 2.25}, step=1)  # a new column
        ...     logger.log_metrics({"train/loss": 2.0}, step=2)
        ...     print(logger.file.read_text().strip())
        step,train/loss,val/loss
        1,2.5,
        1,,2.25
        2,2.0,
    """

    name = ""  # Lightning requires a name and a version
    version = ""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.file = folder / "metrics.csv"
        self._columns: list[str] | None = None
        self._last_row = ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since the run's config.yaml holds the hyper-parameters."""

    @property
    def save_dir(self) -> str:
        """Path of the run directory."""
        return str(self.folder)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a row with the metrics of a step, unless the row equals the previous row.

        Such duplicates occur because Lightning logs a step again after `write_metrics_row` did.

        Args:
            metrics: Value of each metric.
            step: Number of completed optimizer steps, which the column "step" holds.
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
        except DiskError:
            os.truncate(self.file, size)  # a part of the row may have been written
            raise

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """Remove the rows whose column "step" is larger than `step` from metrics.csv.

        A run that is resumed from a checkpoint of this step logs the later steps again.

        Args:
            step: Number of completed optimizer steps.
        """
        columns, rows = self._read()
        if columns:
            kept = [row for row in rows if row["step"].isdecimal() and int(row["step"]) <= step]
            self._write(columns, kept)

    def sync(self) -> None:
        """Flush metrics.csv to the disk."""
        if self.file.is_file():
            sync(self.file)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Read metrics.csv. A damaged file is renamed, and an incomplete last row is dropped.

        Returns:
            The names of the columns, and a dict from column name to text for each row. Both are
            empty if the file does not exist or is damaged.
        """
        if not self.file.exists():
            return [], []
        try:
            with self.file.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
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
        self._columns = columns


class RewindMetricsCSV(Callback):
    """Callback that removes rows from metrics.csv when training starts.

    The removed rows are those of steps that a resumed or restarted run logs again. When a
    checkpoint is saved, the callback flushes metrics.csv to the disk before the checkpoint.

    Example:
        >>> import tempfile
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> quiet |= {"enable_checkpointing": False, "limit_val_batches": 0, "log_every_n_steps": 1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = MetricsCSVLogger(Path(folder))
        ...     logger.log_metrics({"train/loss": 2.5}, step=700)  # of an earlier run
        ...     callbacks = [RewindMetricsCSV()]
        ...     Trainer(max_steps=2, logger=logger, callbacks=callbacks, **quiet).fit(task, data)
        ...     [row.split(",")[0] for row in logger.file.read_text().splitlines()]
        ['step', '1', '2']
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the rows of steps after the restored checkpoint from metrics.csv.

        All rows are removed if training starts without a checkpoint.
        """
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSVLogger):
                logger.rewind(trainer.global_step)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Flush metrics.csv to the disk."""
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, MetricsCSVLogger):
                logger.sync()


def write_metrics_row(trainer: Trainer) -> None:
    """Write the current step's row of metrics.csv before a checkpoint of that step is saved.

    Lightning logs after all `on_train_batch_end` hooks. If the process were killed after saving the
    checkpoint and before Lightning logs, the resumed run would begin after this step, and the row
    of this step would be missing.

    Args:
        trainer: Trainer, in `on_train_batch_end`.

    Example:
        >>> import tempfile
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> quiet |= {"enable_checkpointing": False, "limit_val_batches": 0, "log_every_n_steps": 1}
        >>> class Print(Callback):
        ...     def on_train_batch_end(self, trainer, *_):
        ...         write_metrics_row(trainer)
        ...         print(len(trainer.logger.file.read_text().splitlines()), "lines")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = MetricsCSVLogger(Path(folder))
        ...     Trainer(max_steps=2, logger=logger, callbacks=[Print()], **quiet).fit(task, data)
        2 lines
        3 lines
    """
    loggers = [logger for logger in trainer.loggers if isinstance(logger, MetricsCSVLogger)]
    log_step_metrics(trainer, loggers)
