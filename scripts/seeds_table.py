"""Table of the results of several trainings with several seeds each, and a plot over labels.

python scripts/seeds_table.py runs/minilm results/minilm

Reads RUNS/START/ROW/seeds.json, which `fourfold seeds` writes. The table has a column for each
START (pretrained, scratch) and a row for each ROW (a task, or a number of labels).
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # needs no display, whatever MPLBACKEND is

import matplotlib.pyplot as plt

# Metrics of the tasks; others have those of DEFAULT.
METRICS = {
    "MRPC": ("f1", "accuracy"),
    "STS-B": ("spearman", "pearson"),
    "CoLA": ("mcc",),
    "wnut17": ("f1",),
    "xquad": ("f1", "exact_match"),
}
DEFAULT = ("accuracy", "top1")
ABSOLUTE = re.compile(r"(?<=[ =])/\S*/")  # absolute directories are removed
Summaries = dict[str, dict[str, Any]]  # by start and row


def read(runs: Path) -> Summaries:
    """Read the summaries of all trainings in a folder."""
    summaries: Summaries = {}
    for file in sorted(runs.glob("*/*/seeds.json")) or sorted(runs.glob("*/seeds.json")):
        row = file.parent.name if file.parent.parent != runs else "all"
        start = file.parent.parent.name if row != "all" else file.parent.name
        content = json.loads(file.read_text(encoding="utf-8"))
        content["run"]["command"] = ABSOLUTE.sub("", content["run"]["command"])
        summaries.setdefault(start, {})[row] = content
    return summaries


def rows_of(summaries: Summaries) -> list[str]:
    """Return all rows: numbers by value, others in the order of `METRICS`."""
    rows = {row for part in summaries.values() for row in part}
    order = [*METRICS, *sorted(rows)]
    return sorted(rows, key=lambda row: (int(row) if row.isdecimal() else 0, order.index(row)))


def table(summaries: Summaries) -> str:
    """Format mean and standard deviation over seeds, and the number of seeds."""
    starts = sorted(summaries)
    lines = [f"| task | metric | {' | '.join(starts)} |", f"| --- | --- |{' ---: |' * len(starts)}"]
    for row in rows_of(summaries):
        for metric in METRICS.get(row, DEFAULT):
            cells = [cell(summaries[start].get(row, {}).get(f"test/{metric}")) for start in starts]
            if any(c != "-" for c in cells):
                lines.append(f"| {row} | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(entry: dict[str, Any] | None) -> str:
    """Format a cell such as 0.912 ± 0.004 (3), with the sample standard deviation."""
    if entry is None:
        return "-"
    n, std = len(entry["seeds"]), float(entry["std"])
    spread = "" if math.isnan(std) else f" ± {std:.3f}"
    return f"{entry['mean']:.3f}{spread} ({n})"


def plot(summaries: Summaries, image: Path) -> None:
    """Plot the accuracy of each start over the number of labels, with a dot for each seed."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for start, part in sorted(summaries.items()):
        entries = sorted((int(row), summary["test/accuracy"]) for row, summary in part.items())
        (line,) = axis.plot([n for n, _ in entries], [e["mean"] for _, e in entries], label=start)
        dots = [(n, value) for n, e in entries for value in e["seeds"].values()]
        axis.scatter(*zip(*dots, strict=True), s=12, color=line.get_color())
    axis.set(xscale="log", xlabel="labelled rows", ylabel="test accuracy")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(image, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, help="folder with START/ROW/seeds.json")
    parser.add_argument("destination", type=Path, help="folder under results/")
    arguments = parser.parse_args()
    summaries = read(arguments.runs)
    if not summaries:
        print(f"seeds_table: no seeds.json in {arguments.runs}", file=sys.stderr)
        return 2
    arguments.destination.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summaries, indent=1, sort_keys=True)
    (arguments.destination / "metrics.json").write_text(text + "\n", encoding="utf-8")
    print(table(summaries))
    if all(row.isdecimal() for row in rows_of(summaries)):
        plot(summaries, arguments.destination / "accuracy.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
