"""Callback that writes the outputs of `fourfold predict` as text, CSV, JSON or tensors."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from PIL import Image
from torch import Tensor

from fourfold.atomic_files import atomic_path, write_atomically
from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.data.readers.labels import label_text
from fourfold.metrics.base import gather_objects

# Red, green and blue of the class indices in masks: 0 is black, neighbours differ.
PALETTE = [31 * k * f % 256 for k in range(256) for f in (5, 11, 7)]


class PredictionWriter(Callback):
    """Callback that writes the outputs of all batches and ranks to one file.

    The name and the content of the file depend on the task's outputs, the return values of
    `predict_step`:

    - predictions.json: result of the method `merge_predictions`, if the task has this method.
    - predictions.txt: one text per line in the order of the split, if each output is a list of
      pairs (index of the example in the split, text).
    - predictions.csv: one class or value per line in the order of the split, if outputs are class
      probabilities (B, K) or values of a regression (B, 1), and batches have a field `rows`. With
      several labels per example, a line has the probability of each label. For
      images and texts, each line also has the file, the true class or value, and the text.
    - predictions/NAME.png: the mask of each image file NAME, if each output is a dictionary from
      the index of the image in the split to the mask (height, width) uint8.
    - predictions.pt: in all other cases, a list with the output of each batch.

    Args:
        folder: Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.outputs: list[Any] = []
        self.rows: list[list[int]] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        if isinstance(outputs, dict):
            self._write_masks(outputs, resumable_data(trainer))
            return
        self.outputs.append(outputs.cpu() if isinstance(outputs, Tensor) else outputs)
        rows = getattr(batch, "rows", None)
        if isinstance(outputs, Tensor) and isinstance(rows, Tensor):
            self.rows.append(rows.tolist())

    def _write_masks(self, masks: dict[int, Tensor], data: Any) -> None:
        """Write each mask, whose values are class indices, as a PNG file with a palette."""
        folder = self.folder / "predictions"
        folder.mkdir(parents=True, exist_ok=True)
        for row, mask in masks.items():
            name = str(row) if data is None else Path(data.split("test").location(row)).stem
            image = Image.fromarray(mask.numpy())
            image.putpalette(PALETTE)
            with atomic_path(folder / f"{name}.png") as part:
                image.save(part, "PNG")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the outputs of all ranks, and write the predictions file on the first rank."""
        outputs = interleave(gather_objects(self.outputs))
        rows = list(chain.from_iterable(interleave(gather_objects(self.rows))))
        if not trainer.is_global_zero or not outputs:
            return
        merge = getattr(pl_module, "merge_predictions", None)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "predictions.txt"
        if merge is not None:
            file = file.with_suffix(".json")
            text = json.dumps(merge(outputs), indent=1, ensure_ascii=False) + "\n"
            write_atomically(file, text)
        elif isinstance(outputs[0], list):
            texts = texts_in_row_order(chain.from_iterable(outputs))
            # A line break inside a text would shift all following rows.
            write_atomically(file, "".join(" ".join(text.splitlines()) + "\n" for text in texts))
        elif rows:
            file = file.with_suffix(".csv")
            artifacts = getattr(pl_module, "artifacts", {})
            names = artifacts.get("class_names")
            data = resumable_data(trainer)
            dataset = None if data is None else data.split("test")
            origins = [describe_example(dataset, row, names) for row in sorted(rows)]
            write_atomically(file, format_csv(rows, torch.cat(outputs), artifacts, origins))
        else:
            file = file.with_suffix(".pt")
            with atomic_path(file) as part, part.open("wb") as stream:
                torch.save(outputs, stream)
        print(f"wrote {file}", flush=True)


def describe_example(dataset: Any, row: int, names: list[str] | None) -> dict[str, str]:
    """Return the columns file, true and, for texts, text of an example in predictions.csv.

    A dataset of images has a method `location`, and a dataset of texts an attribute `table`; other
    datasets have no columns. `names` are those of the classes; empty or None for a regression.
    """
    table = getattr(dataset, "table", None)
    if table is None and not hasattr(dataset, "location"):
        return {}
    location = dataset.location(row) if table is None else table.location(row)
    columns = {"file": location, "true": label_text(names, dataset.labels[row])}
    if table is not None:
        columns["text"] = "\t".join(column[row] for column in table.columns[:-1])
    return columns


def interleave(by_rank: list[list[Any]]) -> list[Any]:
    """Concatenate the outputs of all ranks in the order of the batches, which ranks take in turn.

    Example:
        >>> interleave([["batch 0", "batch 2"], ["batch 1"]])
        ['batch 0', 'batch 1', 'batch 2']
    """
    return [item for items in zip_longest(*by_rank) for item in items if item is not None]


def texts_in_row_order(pairs: Iterable[tuple[Any, str]]) -> list[str]:
    """Return the texts of pairs (row, text) in the order of rows; chunks of a row are joined.

    Example:
        >>> texts_in_row_order([((1, 1), "mat"), ((0, 0), "one"), ((1, 0), "on the")])
        ['one', 'on the mat']
    """
    rows: dict[int, list[str]] = {}
    for name, text in sorted(pairs):
        rows.setdefault(name[0] if isinstance(name, tuple) else name, []).append(text)
    return [" ".join(chunks) for chunks in rows.values()]


def format_csv(
    rows: list[int], values: Tensor, artifacts: Any = None, origins: Sequence[dict[str, str]] = ()
) -> str:
    """Format predictions as CSV, with a header and one line per example in the order of the split.

    The columns are row, class, name and probability of the most probable class; row and value of a
    regression; or row and the probability of each label, with the name of the label as header. A
    label that has the name of another column, such as true, has the header "label true".

    Args:
        rows: Row of each of the N examples.
        values: Class probabilities (N, K) or values of a regression (N, 1).
        artifacts: Artifacts `class_names`, without which the names are the indices of the classes,
            and `multi_label`, True if an example has several labels.
        origins: Further columns of each example, in the order of the rows.

    Example:
        >>> probabilities = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> format_csv([1, 0], probabilities, {"class_names": ["cat", "dog"]}).split()
        ['row,class,name,probability', '0,0,cat,0.500000', '1,1,dog,0.750000']
    """
    out = io.StringIO()
    writer = csv.writer(out)
    more = origins or [{} for _ in rows]
    names, several = (dict(artifacts or {}).get(x) for x in ("class_names", "multi_label"))
    has_class = not several and values.shape[-1] > 1
    header: Any = ["class", "name", "probability"] if has_class else ["value"]
    if several:
        header = [
            f"label {x}" if x in ("row", *more[0]) else x for x in names or range(len(values[0]))
        ]
    writer.writerow(["row", *header, *more[0]])
    lines = sorted(zip(rows, values.tolist(), strict=True))
    for (row, line), extra in zip(lines, more, strict=True):
        best = line.index(max(line))
        class_columns = [best, names[best] if names else best] if has_class else []
        numbers = [f"{x:.6f}" for x in (line if several else [line[best]])]
        writer.writerow([row, *class_columns, *numbers, *extra.values()])
    return out.getvalue()
