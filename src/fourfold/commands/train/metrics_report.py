"""What a measurement found: a table for the reader, metrics.json for everything else."""

import json
import math
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fourfold.bench.machine import commit, hardware, installed
from fourfold.files import write_whole

REPORTED = ("fourfold", "torch", "lightning", "tokenizers", "sacrebleu")


def show_table(metrics: dict[str, Any], title: str) -> None:
    """Print one row a metric; tables such as a confusion matrix are only in the file."""
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        if isinstance(value, int | float | str):
            table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    # Redirected to a file, a table has all the width it needs: no metric is cut off.
    width = None if Console().is_terminal else 120
    print(title)
    Console(width=width, highlight=False).print(table)


def show_seeds(summary: dict[str, dict[str, Any]], title: str) -> None:
    """Print one row a metric: mean, standard deviation, best, and each seed's value."""
    seeds = next(iter(summary.values()))["seeds"]
    table = Table()
    for name in ("metric", "mean", "std", "best", *(f"seed {seed}" for seed in seeds)):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for name, found in summary.items():
        values = [found["mean"], found["std"], found["best"], *found["seeds"].values()]
        table.add_row(name, *(f"{value:.4f}" for value in values))
    width = None if Console().is_terminal else 120
    print(title)
    Console(width=width, highlight=False).print(table)


def write_metrics(file: Path, metrics: dict[str, Any], run: dict[str, Any]) -> None:
    """Write metrics, and under `run` how they were obtained, whole or not at all."""
    versions = {name: found for name in REPORTED if (found := installed(name))}
    run = {
        **run,
        **({"commit": found} if (found := commit()) else {}),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **versions},
    }
    content = {**{name: plain(value) for name, value in metrics.items()}, "run": run}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content, indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {name: plain(below) for name, below in value.items()}
    if isinstance(value, list):
        return [plain(below) for below in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no inf and no nan
    return value
