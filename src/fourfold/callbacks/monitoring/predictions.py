"""What `predict` writes: texts in row order, classes of images as a table, else tensors."""

import csv
import io
import json
from collections.abc import Iterable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from fourfold.files import whole
from fourfold.metrics.by_row import gather


class Predictions(Callback):
    """Collects the outputs of all batches and ranks, and writes one file when all are there.

    - (row, text) pairs: predictions.txt, one line a row of the split.
    - tensors of batches with rows (class probabilities, or a number): predictions.csv.
    - what the task's own `merge_predictions` makes of them: predictions.json.
    - anything else: predictions.pt, a list with what the task gave for each batch.

    Args:
        folder: Where the file goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: list[Any] = []
        self.rows: list[list[int]] = []

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
            self.rows.append(rows.tolist())

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, on the first rank."""
        outputs = in_turn(gather(self.outputs))
        rows = list(chain.from_iterable(in_turn(gather(self.rows))))
        if not trainer.is_global_zero or not outputs:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        merge = getattr(pl_module, "merge_predictions", None)
        if merge is not None:
            text = json.dumps(merge(outputs), indent=1, ensure_ascii=False) + "\n"
            file = self._write("predictions.json", text.encode())
        elif isinstance(outputs[0], list):
            texts = joined(pair for part in outputs for pair in part)
            # A line break inside a text would shift all rows after it.
            lines = [" ".join(text.splitlines()) + "\n" for text in texts]
            file = self._write("predictions.txt", "".join(lines).encode())
        elif rows:
            names = getattr(pl_module, "artifacts", {}).get("class_names")
            file = self._write("predictions.csv", table(rows, torch.cat(outputs), names).encode())
        else:
            content = io.BytesIO()
            torch.save(outputs, content)
            file = self._write("predictions.pt", content.getvalue())
        print(f"wrote {file}", flush=True)

    def _write(self, name: str, content: bytes) -> Path:
        file = self.folder / name
        with whole(file) as part:
            part.write_bytes(content)
        return file


def in_turn(parts: list[list[Any]]) -> list[Any]:
    """What each rank has of its batches, in the order in which these were dealt out."""
    return [found for turn in zip_longest(*parts) for found in turn if found is not None]


def joined(pairs: Iterable[tuple[Any, str]]) -> list[str]:
    """Texts in row order; a row that was cut is named (row, piece), and is one text again."""
    rows: dict[int, list[str]] = {}
    for name, text in sorted(pairs):
        rows.setdefault(name[0] if isinstance(name, tuple) else name, []).append(text)
    return [" ".join(pieces) for pieces in rows.values()]


def table(rows: list[int], values: Tensor, names: list[str] | None) -> str:
    """CSV of class probabilities (N, K), or of one number for each row (N, 1), in row order."""
    out = io.StringIO()
    writer = csv.writer(out)
    best, classes = values.max(dim=-1)
    found = sorted(zip(rows, classes.tolist(), best.tolist(), strict=True))
    if values.shape[-1] == 1:
        writer.writerow(["row", "value"])
        writer.writerows([row, f"{x:.6f}"] for row, _, x in found)
    else:
        writer.writerow(["row", "class", "name", "probability"])
        writer.writerows([row, k, names[k] if names else k, f"{p:.6f}"] for row, k, p in found)
    return out.getvalue()
