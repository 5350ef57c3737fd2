"""WandbRunLogger and UploadCheckpoints, which send metrics, media and checkpoints to W&B.

The package `wandb` is imported when the first metric is logged.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.checkpoints.files import is_checkpoint, read_file
from fourfold.lightning_internals import remove_wandb_init_argument, take_wandb_run
from fourfold.loggers.media import Media, Table


class WandbRunLogger(WandbLogger):
    """Lightning's WandbLogger with four changes.

    - The step of the run's history is the optimizer step, so a resumed run continues its history.
    - The config of the run is the argument `config` instead of the hyper-parameters of the model.
    - Test metrics are written to the summary only.
    - The W&B run ends when the training or the test ends. If the run is offline, the command that
      uploads the run is printed.

    Args:
        testing: True if a trained model is tested, False if a model is trained.
        **options: Arguments of `WandbLogger` and `wandb.init`, such as `config`.
    """

    def __init__(self, testing: bool = False, **options: Any) -> None:
        super().__init__(**options)
        remove_wandb_init_argument(self, "anonymous")  # deprecated: wandb warns of any value
        self.is_offline = bool(options.get("offline"))
        self.testing = testing
        self._last_step = 0

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Start the W&B run, whose config the constructor has received."""
        _ = self.experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics to the history of the W&B run, or to its summary if a model is tested.

        A step before the last logged one is raised to it, since wandb rejects decreasing steps.
        """
        if self.testing:
            self.experiment.summary.update({k: v for k, v in metrics.items() if k != "epoch"})
            return
        self._last_step = max(self._last_step, step or 0)  # wandb rejects decreasing steps
        row = {**metrics, "trainer/global_step": self._last_step}
        self.experiment.log(row, step=self._last_step)

    @rank_zero_only
    def log_media(self, key: str, media: Media | None, files: list[Path], step: int) -> None:
        """Log media as a table, an image or HTML, after `media.save` has written the files.

        Args:
            key: Name of the media in the W&B run.
            media: The media; None if the files hold everything.
            files: Files that `media.save` has written. PNG and HTML files are uploaded.
            step: Optimizer step.
        """
        import wandb

        logged: dict[str, Any] = {}
        for file in files:
            if file.suffix == ".png":
                logged[key] = wandb.Image(str(file))
            elif file.suffix == ".html":
                logged[key] = wandb.Html(file.read_text(encoding="utf-8"))
        if isinstance(media, Table):
            rows = [[x if isinstance(x, int | float) else str(x) for x in r] for r in media.rows]
            logged[key] = wandb.Table(columns=[*media.columns], data=rows, allow_mixed_types=True)
        self.log_metrics(logged, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the W&B run in the process that started it; do nothing in other processes."""
        run = take_wandb_run(self)
        if run is None:
            return
        folder = Path(run.dir).parent
        run.finish(exit_code=int(status != "success"))
        if self.is_offline and folder.is_dir():
            # A resumed run has one folder for each process; wandb skips those it has uploaded.
            folders = f"{shlex.quote(str(folder.parent))}/offline-run-*"
            print(f"to send this run to Weights & Biases: wandb sync {folders}", flush=True)


class UploadCheckpoints(Checkpoint):
    """Callback that uploads last.ckpt, best.ckpt and average.ckpt to W&B when training ends.

    The class derives from `Checkpoint` because Lightning calls `Checkpoint` callbacks after all
    other callbacks, when the files are complete.

    Args:
        folder: Folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload the checkpoints from rank 0; W&B skips files that it already has."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, WandbRunLogger):
                    self._upload(logger.experiment)

    def _upload(self, run: Any) -> None:
        import wandb

        for name in ("average", "best", "last"):  # the newest version should be last.ckpt
            file = self.folder / f"{name}.ckpt"
            if not is_checkpoint(file):
                continue
            step = read_file(file, mmap=True, meta=True)["global_step"]
            artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": step})
            (artifact.add_dir if file.is_dir() else artifact.add_file)(str(file))
            run.log_artifact(artifact, aliases=[name, f"step-{step}"])
