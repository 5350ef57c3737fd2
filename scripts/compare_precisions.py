"""The same trainings in 32-true, bf16-mixed and, with a GPU, 16-mixed: curves laid over each other.

    python scripts/precisions.py OUT [--steps 200] [--work DIR]

The tiny recipes of the four families, each with the same seed, data and dropout. OUT gets loss.csv,
loss.png and table.md: for each precision the mean training loss of the last quarter, and how far
its curve is from that of 32-true (root mean square over the steps), beside how far two seeds of
32-true are from each other.
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

matplotlib.use("Agg")  # no display, whatever the environment says

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
    """The training loss of each step."""
    command = [
        *(sys.executable, "-m", "fourfold", "fit", "--config", f"configs/{recipe}.yaml"),
        *(f"--trainer.precision={precision}", f"--seed_everything={seed}", "--run_dir", str(run)),
        *(f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1", "--trainer.devices=1"),
        *("--trainer.log_every_n_steps=1", "--trainer.limit_val_batches=0", "--pictures=false"),
        *("--tensorboard=false", "--checkpoint.every_n_epochs=0"),
    ]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ)
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def distance(a: Curve, b: Curve) -> float:
    """Root mean square of the differences of two curves."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def tail(curve: Curve) -> float:
    """Mean over the last quarter."""
    last = curve[-max(1, len(curve) // 4) :]
    return sum(last) / len(last)


def draw(curves: dict[str, dict[str, Curve]], file: Path) -> None:
    """One picture a family."""
    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.2), layout="tight")
    for axis, (name, found) in zip(axes, curves.items(), strict=True):
        for label, curve in found.items():
            axis.plot(range(1, len(curve) + 1), curve, label=label, linewidth=1)
        axis.set(title=name, xlabel="step", ylabel="training loss, nats")
    axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=130)


def table(curves: dict[str, dict[str, Curve]]) -> str:
    """Losses and distances."""
    lines = ["| | run | loss at the end | distance from 32-true |", "| --- | --- | ---: | ---: |"]
    for name, found in curves.items():
        for label, curve in found.items():
            apart = "" if label == "32-true" else f"{distance(curve, found['32-true']):.4f}"
            lines.append(f"| {name} | {label} | {tail(curve):.4f} | {apart} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--work", type=Path)
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
            print(f"{name}, {label}: {tail(curve):.4f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "loss.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["family", "run", "step", "train/loss"])
        for name, found in curves.items():
            for label, curve in found.items():
                writer.writerows([name, label, i, loss] for i, loss in enumerate(curve, 1))
    (options.out / "table.md").write_text(table(curves))
    draw(curves, options.out / "loss.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
