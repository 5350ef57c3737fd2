"""Callback that writes config.yaml and tokenizer.json of a training to the run directory."""

from collections.abc import Sequence
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from fourfold.atomic_files import write_atomically


class RunFiles(Callback):
    """Callback that writes config.yaml and tokenizer.json to the run directory.

    config.yaml has the options of the last start. If a resumed training has other options, the
    earlier config.yaml is renamed to config_until_step=N.yaml, where N is the number of optimizer
    steps before the resumption. Files are written only when training starts, so that invalid input
    leaves no files behind.

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
        if not trainer.is_global_zero:
            return
        for line in self.changes:
            print(line, flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "config.yaml"
        earlier = self.folder / f"config_until_step={trainer.global_step}.yaml"
        if trainer.global_step and file.is_file() and not earlier.exists():
            text = file.read_text(encoding="utf-8", errors="replace")
            if text != self.config:
                write_atomically(earlier, text)
        write_atomically(file, self.config)
        tokenizer = getattr(pl_module, "artifacts", {}).get("tokenizer")
        if tokenizer is not None:
            write_atomically(self.folder / "tokenizer.json", tokenizer)
