"""Copies the metrics of a run to results/, and plots its loss curves.

Writes metrics.json (unchanged), curve.csv and curve.png.

    python scripts/record_results.py runs/vaswani2017/laptop_multi30k_en_de results/multi30k/en_de
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from plot_curves import plot_curves, read_curve

PLOTTED = ("train/loss", "val/loss", "val/top1")
# Metrics that are recorded from the last validation if the run was not tested.
VALIDATION_METRICS = (
    "val/loss",
    "val/accuracy",
    "val/ppl_token",
    "val/ppl_byte",
    "val/top1",
    "val/top5",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="directory of a finished run")
    parser.add_argument("destination", type=Path, help="folder under results/")
    options = parser.parse_args()
    metrics = options.run / "metrics.csv"
    destination: Path = options.destination
    if not metrics.is_file():
        print(f"record_results: {metrics} does not exist; train the run first", file=sys.stderr)
        return 2
    destination.mkdir(parents=True, exist_ok=True)
    shutil.copy(metrics, destination / "curve.csv")
    test_metrics = options.run / "metrics.json"
    if test_metrics.is_file():
        shutil.copy(test_metrics, destination / "metrics.json")
    else:  # recipes without a test split
        curves = {name: read_curve(metrics, name) for name in VALIDATION_METRICS}
        last = {name: curve[-1][1] for name, curve in curves.items() if curve}
        (destination / "metrics.json").write_text(json.dumps(last, indent=1) + "\n")
    plot_curves(metrics, PLOTTED, destination / "curve.png", destination.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
