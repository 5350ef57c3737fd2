"""What a run directory holds beside checkpoints and metrics: config and tokenizer."""

from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from fourfold.files import write_whole


class RunFiles(Callback):
    """Writes config.yaml, or config_resume_N.yaml when the run is resumed, and tokenizer.json.

    Written when training really starts: an input that is refused leaves nothing behind.

    Args:
        folder: The run's directory.
        config: The whole config as YAML.
    """

    def __init__(self, folder: Path, config: str) -> None:
        self.folder, self.config = folder, config

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write them, on the first rank."""
        if not trainer.is_global_zero:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._config_file(resumed=trainer.global_step > 0), self.config)
        tokenizer = getattr(pl_module, "artifacts", {}).get("tokenizer")
        if tokenizer is not None:
            write_whole(self.folder / "tokenizer.json", tokenizer)

    def _config_file(self, resumed: bool) -> Path:
        first = self.folder / "config.yaml"
        if not resumed or not first.exists():
            return first
        number = 1
        while (file := self.folder / f"config_resume_{number}.yaml").exists():
            number += 1
        return file
