"""What `predict` writes: texts in row order, classes of images as a table, else tensors."""

import csv
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch import Tensor


class Predictions(Callback):
    """Collects the outputs of all batches and ranks, and writes one file when all are there.

    - (row, text) pairs: predictions.txt, one line a row of the split.
    - tensors of batches with rows (class probabilities): predictions.csv.
    - other tensors: predictions.pt, a list with one tensor a batch.

    Args:
        folder: Where the file goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: list[Any] = []
        self.rows: list[int] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with none."""
        self.outputs, self.rows = [], []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Keep a batch's output."""
        self.outputs.append(outputs.cpu() if isinstance(outputs, Tensor) else outputs)
        rows = getattr(batch, "index", None)  # every tuple has a method of that name
        if isinstance(outputs, Tensor) and isinstance(rows, Tensor):
            self.rows += rows.tolist()

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, on the first rank."""
        outputs, rows = gather(self.outputs), gather(self.rows)
        if not trainer.is_global_zero or not outputs:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if isinstance(outputs[0], list):
            file = self._write_texts([pair for part in outputs for pair in part])
        elif rows:
            names = getattr(pl_module, "artifacts", {}).get("class_names")
            file = self._write_classes(rows, torch.cat(outputs), names)
        else:
            file = self.folder / "predictions.pt"
            torch.save(outputs, file)
        print(f"wrote {file}", flush=True)

    def _write_texts(self, pairs: list[tuple[int, str]]) -> Path:
        file = self.folder / "predictions.txt"
        part = file.with_name(file.name + ".part")
        # A line break inside a text would shift all rows after it.
        lines = [" ".join(text.splitlines()) + "\n" for _, text in sorted(pairs)]
        part.write_text("".join(lines), encoding="utf-8")
        os.replace(part, file)
        return file

    def _write_classes(
        self, rows: list[int], probabilities: Tensor, names: list[str] | None
    ) -> Path:
        file = self.folder / "predictions.csv"
        part = file.with_name(file.name + ".part")
        best, classes = probabilities.max(dim=-1)
        with part.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(["row", "class", "name", "probability"])
            found = sorted(zip(rows, classes.tolist(), best.tolist(), strict=True))
            for row, k, p in found:
                writer.writerow([row, k, names[k] if names else k, f"{p:.6f}"])
        os.replace(part, file)
        return file


def gather(mine: list[Any]) -> list[Any]:
    """The lists of all ranks, one after the other."""
    if not (dist.is_available() and dist.is_initialized()):
        return mine
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return [item for part in parts for item in part]
