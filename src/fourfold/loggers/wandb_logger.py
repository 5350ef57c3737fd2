"""A run in Weights & Biases, which stays one run when it is resumed and when it is tested.

`wandb` is imported by Lightning's logger, and here, only once something is logged.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.callbacks.media import Confusion, Media, Table

MOST_CELLS = 2500  # of a confusion matrix that is also sent as a chart


class WandbRun(WandbLogger):
    """Lightning's logger, with four differences.

    - The step of the history is the optimizer step, so that a resumed run, whose process would
      count from 0 again, goes on where it was.
    - The config of the run is what it was given, and not the model's part of it.
    - What a test measures is no point of the history, and goes into the summary alone.
    - It ends with the training or the test, and says how to send a run that is offline.

    Args:
        testing: Whether a finished training is tested.
        options: As `WandbLogger` and `wandb.init`.
    """

    def __init__(self, testing: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._wandb_init.pop("anonymous", None)  # wandb warns of it, whatever it is
        self.testing = testing
        self._reached = 0  # steps may not go down

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Begin the run; the config is already there."""
        _ = self.experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """A point of the history, or in a test values of the summary."""
        if self.testing:
            self.experiment.summary.update({k: v for k, v in metrics.items() if k != "epoch"})
            return
        self._reached = max(self._reached, step or 0)
        row = {**metrics, "trainer/global_step": self._reached}
        self.experiment.log(row, step=self._reached)

    @rank_zero_only
    def log_media(self, key: str, media: Media, files: list[Path], step: int) -> None:
        """Log what was written to `files` as a table, a chart or an image."""
        import wandb

        found: dict[str, Any] = {}
        if isinstance(media, Table):
            rows = [[_plain(cell) for cell in row] for row in media.rows]
            found[key] = wandb.Table(columns=[*media.columns], data=rows, allow_mixed_types=True)
        for file in files:
            if file.suffix == ".png":
                found[key] = wandb.Image(str(file))
        if isinstance(media, Confusion) and len(media.counts) ** 2 <= MOST_CELLS:
            found[f"{key}_table"] = _cells(wandb, media)
        self.log_metrics(found, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, in the process that began it, and say how to send it if it lies here."""
        if self._experiment is None:
            return
        folder = Path(self._experiment.dir).parent
        self._experiment.finish(exit_code=int(status != "success"))
        self._experiment = None
        if self._offline and folder.is_dir():
            # With all that earlier processes wrote; what was sent already is left out.
            others = f"{shlex.quote(str(folder.parent))}/offline-run-*"
            print(f"to send this run to Weights & Biases: wandb sync {others}", flush=True)


def _plain(cell: Any) -> Any:
    return cell if isinstance(cell, int | float) else str(cell)


def _cells(wandb: Any, media: Confusion) -> Any:
    """One row for each pair of classes, as W&B's own charts of a confusion matrix have them."""
    rows = [
        [true, guessed, count]
        for true, counts in zip(media.names, media.counts, strict=True)
        for guessed, count in zip(media.names, counts, strict=True)
    ]
    return wandb.Table(columns=["Actual", "Predicted", "nPredictions"], data=rows)


class SendCheckpoints(Checkpoint):
    """Sends checkpoints as versions of one artifact when training has ended, and all are written.

    It is a `Checkpoint` only so that Lightning calls it after those that write the files.

    Args:
        folder: The run's folder of checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trained = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that there is something new."""
        self.trained = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send them, from the first rank."""
        for logger in trainer.loggers if self.trained else ():
            if trainer.is_global_zero and isinstance(logger, WandbRun):
                self._send(logger)

    def _send(self, logger: WandbRun) -> None:
        import wandb

        run = logger.experiment
        for word in ("average", "best", "last"):  # the newest version is the one to go on from
            file = self.folder / f"{word}.ckpt"
            if not file.is_file():
                continue
            step = torch.load(file, map_location="meta", weights_only=True)["global_step"]
            artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": step})
            artifact.add_file(str(file))
            run.log_artifact(artifact, aliases=[word, f"step-{step}"])
