"""Several seeds of several trainings, side by side: a table, all numbers, and a curve over labels.

python scripts/seeds_table.py runs/minilm results/minilm

Reads RUNS/START/ROW/seeds.json, as `fourfold seeds` writes it: a column for each START (pretrained,
scratch), a row for each ROW (a task, or a number of labels).
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display, whatever the environment says

import matplotlib.pyplot as plt

# What each task is measured by; others by accuracy, then top-1.
METRICS = {
    "MRPC": ("f1", "accuracy"),
    "STS-B": ("spearman", "pearson"),
    "CoLA": ("matthews",),
    "wnut17": ("f1",),
    "xquad": ("f1", "exact_match"),
}
DEFAULT = ("accuracy", "top1")
ABSOLUTE = re.compile(r"(?<=[ =])/\S*/")  # directories of one machine say nothing to others
Found = dict[str, dict[str, Any]]  # start: row: summary


def read(runs: Path) -> Found:
    """The summaries of all trainings under a folder."""
    found: Found = {}
    for file in sorted(runs.glob("*/*/seeds.json")) or sorted(runs.glob("*/seeds.json")):
        row = file.parent.name if file.parent.parent != runs else "all"
        start = file.parent.parent.name if row != "all" else file.parent.name
        content = json.loads(file.read_text(encoding="utf-8"))
        content["run"]["command"] = ABSOLUTE.sub("", content["run"]["command"])
        found.setdefault(start, {})[row] = content
    return found


def rows_of(found: Found) -> list[str]:
    """All rows: numbers by their value, others as the table of metrics has them."""
    rows = {row for part in found.values() for row in part}
    order = [*METRICS, *sorted(rows)]
    return sorted(rows, key=lambda row: (int(row) if row.isdecimal() else 0, order.index(row)))


def table(found: Found) -> str:
    """Mean and standard deviation over seeds, and how many there were."""
    starts = sorted(found)
    lines = [f"| what | metric | {' | '.join(starts)} |", f"| --- | --- |{' ---: |' * len(starts)}"]
    for row in rows_of(found):
        for metric in METRICS.get(row, DEFAULT):
            cells = [cell(found[start].get(row, {}).get(f"test/{metric}")) for start in starts]
            if any(c != "-" for c in cells):
                lines.append(f"| {row} | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(entry: dict[str, Any] | None) -> str:
    """Like 0.912 ± 0.004 (3); the deviation is that of a sample."""
    if entry is None:
        return "-"
    n, std = len(entry["seeds"]), float(entry["std"])
    spread = "" if math.isnan(std) else f" ± {std:.3f}"
    return f"{entry['mean']:.3f}{spread} ({n})"


def draw(found: Found, picture: Path) -> None:
    """Each start's metric over the number of labels, each seed a dot."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for start, part in sorted(found.items()):
        entries = sorted((int(row), summary["test/accuracy"]) for row, summary in part.items())
        (line,) = axis.plot([n for n, _ in entries], [e["mean"] for _, e in entries], label=start)
        dots = [(n, value) for n, e in entries for value in e["seeds"].values()]
        axis.scatter(*zip(*dots, strict=True), s=12, color=line.get_color())
    axis.set(xscale="log", xlabel="labelled rows", ylabel="test accuracy")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, help="folder with START/ROW/seeds.json")
    parser.add_argument("destination", type=Path, help="folder under results/")
    arguments = parser.parse_args()
    found = read(arguments.runs)
    if not found:
        print(f"seeds_table: no seeds.json under {arguments.runs}", file=sys.stderr)
        return 2
    arguments.destination.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1, sort_keys=True)
    (arguments.destination / "metrics.json").write_text(text + "\n", encoding="utf-8")
    print(table(found))
    if all(row.isdecimal() for row in rows_of(found)):
        draw(found, arguments.destination / "accuracy.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
