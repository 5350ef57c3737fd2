"""Callback that writes the outputs of `fourfold predict` as text, CSV, JSON or tensors."""

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

from fourfold.atomic_files import atomic_path
from fourfold.metrics.base import gather_objects


class PredictionWriter(Callback):
    """Callback that writes the outputs of all batches and ranks to one file.

    - predictions.json: results of the method `merge_predictions`, if the task has one.
    - predictions.txt: texts, one line for each row of the split, if outputs are (row, text) pairs.
    - predictions.csv: class probabilities (B, K) or numbers (B, 1), if batches have row numbers.
    - predictions.pt: otherwise, a list with the output of each batch.

    Args:
        folder: Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: list[Any] = []
        self.rows: list[list[int]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the outputs of an earlier prediction."""
        self.outputs = []
        self.rows = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the output of a batch."""
        self.outputs.append(outputs.cpu() if isinstance(outputs, Tensor) else outputs)
        rows = getattr(batch, "rows", None)
        if isinstance(outputs, Tensor) and isinstance(rows, Tensor):
            self.rows.append(rows.tolist())

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file on the first rank."""
        outputs = interleave(gather_objects(self.outputs))
        rows = list(chain.from_iterable(interleave(gather_objects(self.rows))))
        if not trainer.is_global_zero or not outputs:
            return
        merge = getattr(pl_module, "merge_predictions", None)
        text = None
        suffix = "pt"
        if merge is not None:
            suffix = "json"
            text = json.dumps(merge(outputs), indent=1, ensure_ascii=False) + "\n"
        elif isinstance(outputs[0], list):
            suffix = "txt"
            texts = texts_in_row_order(chain.from_iterable(outputs))
            # A line break inside a text would shift all following rows.
            text = "".join(" ".join(text.splitlines()) + "\n" for text in texts)
        elif rows:
            suffix = "csv"
            names = getattr(pl_module, "artifacts", {}).get("class_names")
            text = format_csv(rows, torch.cat(outputs), names)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"predictions.{suffix}"
        with atomic_path(file) as part:
            if text is None:
                torch.save(outputs, part)
            else:
                part.write_bytes(text.encode())
        print(f"wrote {file}", flush=True)


def interleave(by_rank: list[list[Any]]) -> list[Any]:
    """Return the outputs of all ranks in the order in which batches were given to the ranks."""
    return [item for items in zip_longest(*by_rank) for item in items if item is not None]


def texts_in_row_order(pairs: Iterable[tuple[Any, str]]) -> list[str]:
    """Return the texts of (row, text) pairs in row order.

    If the first entry of a pair is a pair (row, chunk), the chunks of a row are joined by spaces.
    """
    rows: dict[int, list[str]] = {}
    for name, text in sorted(pairs):
        rows.setdefault(name[0] if isinstance(name, tuple) else name, []).append(text)
    return [" ".join(chunks) for chunks in rows.values()]


def format_csv(rows: list[int], values: Tensor, names: list[str] | None) -> str:
    """Format class probabilities (N, K), or numbers (N, 1), as CSV in row order."""
    out = io.StringIO()
    writer = csv.writer(out)
    probabilities, classes = values.max(dim=-1)
    lines = sorted(zip(rows, classes.tolist(), probabilities.tolist(), strict=True))
    if values.shape[-1] == 1:
        writer.writerow(["row", "value"])
        writer.writerows([row, f"{x:.6f}"] for row, _, x in lines)
    else:
        writer.writerow(["row", "class", "name", "probability"])
        writer.writerows([row, k, names[k] if names else k, f"{p:.6f}"] for row, k, p in lines)
    return out.getvalue()
