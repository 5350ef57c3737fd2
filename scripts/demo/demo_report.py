"""Report of the demo: a table with baselines, and loss curves."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # needs no display, whatever MPLBACKEND is

import matplotlib.pyplot as plt
from demo_runs import TASKS, clock, read_curve

Row = tuple[str, str, str, str, str]
HEADER: Row = ("task", "test metric", "model", "baselines", "time")
# Title, metric and description of the metric of each task.
METRICS = {
    "translation": ("translation en-de", "test/exact_match", "exact match"),
    "causal_lm": ("causal LM", "test/ppl_byte", "perplexity per byte (lower is better)"),
    "masked_lm": ("masked LM", "test/ppl_token", "perplexity of masked tokens (lower is better)"),
    "images": ("image classification", "test/top1", "top-1 accuracy"),
}
LANGUAGE_MODELS = ("causal_lm", "masked_lm")


def report(folder: Path, found: dict[str, dict[str, float]]) -> None:
    """Print the table, and write table and figures to `folder`."""
    metrics = {
        task: json.loads((folder / task / "metrics.json").read_text(encoding="utf-8"))
        for task in TASKS
    }
    rows = [HEADER]
    for task, (title, metric, name) in METRICS.items():
        simple = ", ".join(f"{value:.3g} {who}" for who, value in found[task].items())
        seconds = float((folder / task / "seconds").read_text())
        rows.append((title, name, f"{metrics[task][metric]:.3g}", simple, clock(seconds)))
    lines = [
        compare_with_baseline(task, metrics[task][METRICS[task][1]], found[task])
        for task in LANGUAGE_MODELS
    ]
    print("", markdown(rows), *lines, sep="\n")
    (folder / "table.md").write_text(markdown(rows) + "\n" + "\n".join(lines) + "\n", "utf-8")
    plot_curves(folder)
    print(f"In {folder}/: table.md, curves.png, look.html, and the run directories.")


def compare_with_baseline(task: str, ours: float, simple: dict[str, float]) -> str:
    """Describe the perplexity of a language model relative to the best baseline."""
    name, best = min(simple.items(), key=lambda pair: pair[1])
    change = ours / best - 1
    verdict = "beats" if change < 0 else "does not beat"
    where = "lower" if change < 0 else "higher"
    return f"The {METRICS[task][0]} {verdict} {name}: its perplexity is {abs(change):.0%} {where}."


def markdown(rows: list[Row]) -> str:
    """Format the table as Markdown."""
    rule = ("---",) * len(HEADER)
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]) + "\n"


def plot_curves(folder: Path) -> None:
    """Plot training and validation loss of each run over optimizer steps as curves.png."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    for axis, (task, (title, _, _)) in zip(axes.flat, METRICS.items(), strict=True):
        for column, style in (("train/loss", "-"), ("val/loss", "o--")):
            curve = read_curve(folder / task / "metrics.csv", column)
            axis.plot(*zip(*curve, strict=True), style, label=column, linewidth=1, markersize=4)
        axis.set(title=title, xlabel="step", ylabel="loss")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(folder / "curves.png", dpi=120)
    plt.close(figure)
