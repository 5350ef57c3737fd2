"""Report of evaluations: metrics.json, and tables of one evaluation or of several seeds."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fourfold.atomic_files import write_atomically
from fourfold.environment import commit, hardware, now, versions

REPORTED_PACKAGES = ("fourfold", "torch", "lightning", "tokenizers", "sacrebleu")
FILE_WIDTH = 120  # columns of a table that is not printed to a terminal


def show_table(metrics: dict[str, Any], title: str) -> None:
    """Print a title and a table with one line per metric, without nested metrics."""
    rows = {
        name: [f"{value:.4f}" if isinstance(value, float) else str(value)]
        for name, value in metrics.items()
        if isinstance(value, int | float | str)
    }
    show_rows(title, ("metric", "value"), rows)


def show_seeds(summary: dict[str, dict[str, Any]], title: str) -> None:
    """Print a title and a table of the metrics of several seeds, one line per metric.

    Args:
        summary: For each metric, a dict with mean, std, best and seeds (values by seed).
        title: The title.
    """
    seeds = sorted({seed for x in summary.values() for seed in x["seeds"]}, key=int)
    rows = {}
    for name, x in summary.items():  # a seed may lack a metric, such as the IoU of a rare class
        values = [x["mean"], x["std"], x["best"], *(x["seeds"].get(s, math.nan) for s in seeds)]
        rows[name] = [f"{value:.4f}" for value in values]
    show_rows(title, ("metric", "mean", "std", "best", *(f"seed {seed}" for seed in seeds)), rows)


def show_settings(settings: Mapping[str, dict[str, dict[str, Any]]], title: str) -> None:
    """Print a title and, for each metric, a table of the settings of a sweep.

    The summaries of the settings, by name, are those of `compare_runs.add_differences`.
    """
    names = ("n", "mean", "std", "difference", "95 % interval")
    print(title)
    for metric in dict.fromkeys(name for summary in settings.values() for name in summary):
        rows = {}
        for setting, entry in ((name, x[metric]) for name, x in settings.items() if metric in x):
            cells = [str(len(entry["seeds"])), *(f"{entry[key]:.4g}" for key in ("mean", "std"))]
            cells.append(f"{entry['difference']:+.4g}" if "difference" in entry else "")
            cells.append(", ".join(f"{bound:+.4g}" for bound in entry.get("interval", ())))
            rows[setting] = cells
        show_rows("", (metric, *names), rows)


def show_rows(title: str, names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """Print a title and a table; the key of a row is its first cell."""
    columns = (Column(name, justify="right", overflow="fold") for name in names[1:])
    table = Table(Column(names[0], overflow="fold"), *columns)
    for heading, cells in rows.items():
        table.add_row(heading, *cells)
    width = None if Console().is_terminal else FILE_WIDTH
    if title:
        print(title)
    Console(width=width, highlight=False).print(table)


def write_metrics(file: Path, metrics: dict[str, Any], run: dict[str, Any]) -> None:
    """Write metrics and, under the key `run`, their origin to a JSON file, atomically.

    Commit, date, hardware and versions are added to the origin.
    """
    origin = {
        **run,
        **({"commit": current} if (current := commit()) else {}),
        "finished": now(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **versions(*REPORTED_PACKAGES)},
    }
    content = {**{name: to_json(value) for name, value in metrics.items()}, "run": origin}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1, allow_nan=False) + "\n")


def to_json(value: Any) -> Any:
    """Return a copy with infinities and NaN replaced by strings, since JSON has neither."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
