"""Reading and plotting the curves in a run's metrics.csv."""

import csv
from collections.abc import Sequence
from pathlib import Path

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


def plot_curves(metrics: Path, columns: Sequence[str], image: Path, title: str) -> None:
    """Plot columns of a metrics.csv over the optimizer steps, and save the figure.

    Columns without values are left out.
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
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(image, dpi=110)
    plt.close(figure)
