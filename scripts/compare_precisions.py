"""Compares the loss curves of 32-true, bf16-mixed and, on a GPU, 16-mixed training.

    python scripts/compare_precisions.py OUT [--steps 200] [--work DIR]

Trains the tiny recipes of the four families with the same seed, data and dropout. For each
precision, the table gives the mean training loss of the last quarter of the steps and the root mean
square distance from the curve of 32-true; the distance between two seeds of 32-true is given for
comparison. OUT receives loss.csv, loss.png and table.md.
"""

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # needs no display, whatever MPLBACKEND is

import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).resolve().parents[1]
RECIPES = {
    "translation": "vaswani2017/tiny",
    "masked LM": "bert/tiny",
    "causal LM": "gpt2/tiny",
    "images": "vit/tiny",
}
Curve = list[float]


def train(recipe: str, precision: str, seed: int, steps: int, run: Path) -> Curve:
    """Train a recipe and return the training loss of each step."""
    command = [
        *(sys.executable, "-m", "fourfold", "fit", "--config", f"configs/{recipe}.yaml"),
        *(f"--trainer.precision={precision}", f"--seed_everything={seed}", "--run_dir", str(run)),
        *(f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1", "--trainer.devices=1"),
        *("--trainer.log_every_n_steps=1", "--trainer.limit_val_batches=0", "--log_samples=false"),
        *("--tensorboard=false", "--checkpoint.every_n_epochs=0"),
    ]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ)
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def distance(a: Curve, b: Curve) -> float:
    """Return the root mean square difference of two curves."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def final_loss(curve: Curve) -> float:
    """Return the mean of the last quarter of a curve."""
    last = curve[-max(1, len(curve) // 4) :]
    return sum(last) / len(last)


def plot(curves: dict[str, dict[str, Curve]], file: Path) -> None:
    """Plot one panel per family."""
    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.2), layout="tight")
    for axis, (name, runs) in zip(axes, curves.items(), strict=True):
        for label, curve in runs.items():
            axis.plot(range(1, len(curve) + 1), curve, label=label, linewidth=1)
        axis.set(title=name, xlabel="step", ylabel="training loss, nats")
    axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=130)


def table(curves: dict[str, dict[str, Curve]]) -> str:
    """Format losses and distances as a Markdown table."""
    lines = ["| | run | final loss | distance from 32-true |", "| --- | --- | ---: | ---: |"]
    for name, runs in curves.items():
        for label, curve in runs.items():
            is_reference = label == "32-true"
            difference = "" if is_reference else f"{distance(curve, runs['32-true']):.4f}"
            lines.append(f"| {name} | {label} | {final_loss(curve):.4f} | {difference} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="directory for the results")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of each run")
    parser.add_argument("--work", type=Path, help="directory for the runs")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="precisions_"))
    runs = [("32-true", 0), ("bf16-mixed", 0), ("32-true", 1)]
    if torch.cuda.is_available():
        runs.insert(2, ("16-mixed", 0))
    curves: dict[str, dict[str, Curve]] = {}
    for name, recipe in RECIPES.items():
        for precision, seed in runs:
            label = precision if not seed else f"{precision}, seed {seed}"
            run = work / f"{name}_{precision}_{seed}".replace(" ", "_")
            curve = train(recipe, precision, seed, options.steps, run)
            curves.setdefault(name, {})[label] = curve
            print(f"{name}, {label}: {final_loss(curve):.4f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "loss.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["family", "run", "step", "train/loss"])
        for name, by_label in curves.items():
            for label, curve in by_label.items():
                writer.writerows([name, label, i, loss] for i, loss in enumerate(curve, 1))
    (options.out / "table.md").write_text(table(curves))
    plot(curves, options.out / "loss.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
