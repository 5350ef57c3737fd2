"""Callback that writes config.yaml and tokenizer.json of a training to the run directory."""

from difflib import unified_diff
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from fourfold.atomic_files import write_atomically


class RunFiles(Callback):
    """Callback that writes config.yaml and tokenizer.json to the run directory.

    config.yaml has the options of the last start. If a resumed training has other options, the
    earlier config.yaml is renamed to config_until_step=N.yaml, where N is the number of optimizer
    steps before the resumption, and the lines that differ are printed. Files are written only when
    training starts, so that invalid input leaves no files behind.

    Args:
        folder: The run directory.
        config: The complete config as YAML.
    """

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        self.config = config

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "config.yaml"
        earlier = self.folder / f"config_until_step={trainer.global_step}.yaml"
        if trainer.global_step and file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            old, new = text.splitlines(), self.config.splitlines()
            lines = [x for x in unified_diff(old, new, n=0, lineterm="") if x[0] in "+-"]
            changes = lines[2:]  # after the two lines of the header
            if changes:
                print("resuming with other options:", *changes, sep="\n", flush=True)
                if not earlier.exists():
                    write_atomically(earlier, text)
        write_atomically(file, self.config)
        tokenizer = getattr(pl_module, "artifacts", {}).get("tokenizer")
        if tokenizer is not None:
            write_atomically(self.folder / "tokenizer.json", tokenizer)
