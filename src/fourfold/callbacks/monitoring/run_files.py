"""Callback that writes config.yaml and tokenizer.json of a training to the run directory."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from fourfold.atomic_files import write_atomically


class RunFiles(Callback):
    """Callback that writes config.yaml and tokenizer.json to the run directory.

    The config of a resumed run is written to config_resume_N.yaml, with the first free number N
    from 1. The file tokenizer.json is written if the task has a tokenizer. Files are written only
    when training starts, so that invalid input leaves no files behind.

    Args:
        folder: The run directory.
        config: The complete config as YAML.
        changes: Lines to print when training starts, about options that have changed since the
            training that is resumed.
    """

    def __init__(self, folder: Path, config: str, changes: Sequence[str] = ()) -> None:
        self.folder = folder
        self.config = config
        self.changes = changes

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files and print the changes on the first rank."""
        if not trainer.is_global_zero:
            return
        for line in self.changes:
            print(line, flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._config_file(resumed=trainer.global_step > 0), self.config)
        tokenizer = getattr(pl_module, "artifacts", {}).get("tokenizer")
        if tokenizer is not None:
            write_atomically(self.folder / "tokenizer.json", tokenizer)

    def _config_file(self, resumed: bool) -> Path:
        first = self.folder / "config.yaml"
        if not resumed or not first.exists():
            return first
        files = (self.folder / f"config_resume_{number}.yaml" for number in count(1))
        return next(file for file in files if not file.exists())
