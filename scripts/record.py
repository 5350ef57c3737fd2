"""Copy what a run found into results/: metrics.json unedited, the curve as CSV and as a picture.

    python scripts/record.py runs/vaswani2017/laptop_multi30k_en_de results/multi30k/en_de

Also `read_curve` and `draw`, for other scripts that show curves.
"""

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Curve = dict[str, list[tuple[int, float]]]


def read_curve(metrics: Path) -> Curve:
    """Each column of a run's metrics.csv as (step, value), without its empty places."""
    curve: Curve = {}
    with metrics.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name != "step" and value:
                    curve.setdefault(name, []).append((int(row["step"]), float(value)))
    return curve


def draw(curves: dict[str, Curve], names: list[str], picture: Path, title: str = "") -> None:
    """One picture with a panel for each run: the named columns over the steps."""
    figure, axes = plt.subplots(1, len(curves), figsize=(5 * len(curves), 3.5), squeeze=False)
    for axis, (label, curve) in zip(axes[0], curves.items(), strict=True):
        for name in names:
            if points := curve.get(name):
                axis.plot(
                    *zip(*points, strict=True), label=name, marker="." if len(points) < 40 else ""
                )
        axis.set(title=label, xlabel="optimizer step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle(title)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory, tested")
    parser.add_argument("destination", type=Path, help="folder under results/")
    arguments = parser.parse_args()
    run, destination = arguments.run, arguments.destination
    if not (run / "metrics.csv").is_file():
        print(f"record: {run / 'metrics.csv'} is not there: fit the run first", file=sys.stderr)
        return 2
    curve = read_curve(run / "metrics.csv")
    destination.mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "metrics.csv", destination / "curve.csv")
    if (run / "metrics.json").is_file():
        shutil.copy(run / "metrics.json", destination / "metrics.json")
    else:  # a recipe without a test split is measured by its last validation
        last = {name: points[-1][1] for name, points in curve.items() if name.startswith("val/")}
        (destination / "metrics.json").write_text(json.dumps(last, indent=1) + "\n")
    names = ["train/loss", "val/loss", "val/top1"]
    draw({destination.name: curve}, names, destination / "curve.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
