"""Reading and plotting the curves in a run's metrics.csv."""

import csv
from collections.abc import Sequence
from pathlib import Path

import yaml

Curve = list[tuple[int, float]]


def read_curve(file: Path, column: str) -> Curve:
    """Read the (step, value) pairs of one column of a metrics.csv.

    Rows without a value are skipped; a missing file gives an empty curve.
    """
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [(row.get("step"), row.get(column)) for row in csv.DictReader(opened)]
    return [(int(step), float(value)) for step, value in rows if step and value]


def training_loss_note(metrics: Path) -> str:
    """Return why the last training loss is above the last validation loss, or "" if it is not."""
    config = metrics.with_name("config.yaml")
    last = [curve[-1][1] for c in ("train/loss", "val/loss") if (curve := read_curve(metrics, c))]
    if not config.is_file() or len(last) < 2 or last[0] <= last[1]:
        return ""
    model = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["init_args"]
    values = {"label smoothing": model.get("label_smoothing")}
    values["dropout"] = model.get("config", {}).get("dropout")
    reasons = [f"{name} {value}" for name, value in values.items() if value]
    return f"train/loss includes {' and '.join(reasons)}, val/loss does not" if reasons else ""


def plot_curves(metrics: Path, columns: Sequence[str], image: Path, title: str) -> None:
    """Plot columns of a metrics.csv over the optimizer steps, and save the figure.

    Columns without values are left out. If the training loss ends above the validation loss, a note
    names those options in the config.yaml beside the metrics that only the training loss contains.
    """
    import matplotlib

    matplotlib.use("Agg")  # needs no display, whatever MPLBACKEND is
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4))
    for column in columns:
        curve = read_curve(metrics, column)
        if curve:
            marker = "." if len(curve) < 40 else ""
            axis.plot(*zip(*curve, strict=True), label=column, marker=marker)
    axis.set(title=title, xlabel="optimizer step")
    if note := training_loss_note(metrics):
        axis.text(0.5, 0.02, note, transform=axis.transAxes, ha="center", fontsize=7)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(image, dpi=110)
    plt.close(figure)
