"""Copy what a run found into results/: metrics.json unedited, the curve as CSV and as a picture.

python scripts/record.py runs/vaswani2017/laptop_multi30k_en_de results/multi30k/en_de
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display, whatever the environment says

import matplotlib.pyplot as plt

from curves import read_curve

DRAWN = ("train/loss", "val/loss", "val/top1")
MEASURED = ("val/loss", "val/accuracy", "val/ppl_token", "val/ppl_byte", "val/top1", "val/top5")


def draw(metrics: Path, picture: Path, title: str) -> None:
    """What was drawn of a run's metrics.csv, over the steps."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for column in DRAWN:
        if curve := read_curve(metrics, column):
            marker = "." if len(curve) < 40 else ""
            axis.plot(*zip(*curve, strict=True), label=column, marker=marker)
    axis.set(title=title, xlabel="optimizer step")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="run directory, trained and tested")
    parser.add_argument("destination", type=Path, help="folder under results/")
    arguments = parser.parse_args()
    metrics, found = arguments.run / "metrics.csv", arguments.run / "metrics.json"
    destination: Path = arguments.destination
    if not metrics.is_file():
        print(f"record: there is no {metrics}: train the run first", file=sys.stderr)
        return 2
    destination.mkdir(parents=True, exist_ok=True)
    shutil.copy(metrics, destination / "curve.csv")
    if found.is_file():
        shutil.copy(found, destination / "metrics.json")
    else:  # a recipe without a test split is measured by its last validation
        last = {c: curve[-1][1] for c in MEASURED if (curve := read_curve(metrics, c))}
        (destination / "metrics.json").write_text(json.dumps(last, indent=1) + "\n")
    draw(metrics, destination / "curve.png", destination.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
