"""Comparison of run directories: metrics, statistics over seeds, differing options, and pictures.

A setting is a combination of options that is trained with several seeds.
"""

import csv
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.atomic_files import atomic_path
from fourfold.checkpoints.schema import flatten
from fourfold.commands import metrics_report
from fourfold.commands.run_directory import RunDirectory
from fourfold.errors import InputError
from fourfold.metrics import lower_is_better
from fourfold.metrics.significance import mean_interval, standard_deviation

Summary = dict[str, dict[str, Any]]  # of each metric: see `summarise`
PANEL_WIDTH = 5.0  # inches
ROW_HEIGHT = 0.26  # inches
CURVE_HEIGHT = 3.0  # inches


def read_curves(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return steps and values of each metric in metrics.csv, without an incomplete last row."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    if not (file := folder / "metrics.csv").is_file():
        return curves
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        step = int(row.pop("step"))
        for name, text in () if None in row.values() else row.items():
            if text:
                steps, values = curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(text))
    return curves


def read_metrics(folder: Path, *, validation: bool = True) -> dict[str, float]:
    """Return the metrics of a run that are numbers: validation metrics, then those of the test.

    A validation metric is the best value in metrics.csv; `validation=False` leaves them out.
    """
    curves = read_curves(folder) if validation else {}
    metrics: dict[str, Any] = {name: best(name, x) for name, (_, x) in curves.items()}
    metrics = {name: value for name, value in metrics.items() if name.startswith("val/")}
    metrics |= RunDirectory(folder).metrics or {}
    # metrics.json spells NaN and infinities as strings.
    return {
        name: float(value)
        for name, value in metrics.items()
        if type(value) in (int, float) or value in ("nan", "inf", "-inf")
    }


def best(name: str, values: Sequence[float]) -> float:
    """Return the minimum of the values of a loss, and the maximum of another metric."""
    numbers = [x for x in values if not math.isnan(x)] or values
    return min(numbers) if lower_is_better(name) else max(numbers)


def summarise(results: Mapping[int, Mapping[str, float]]) -> Summary:
    """Return the mean, sample standard deviation and best value over the seeds for each metric.

    Args:
        results: For each seed, a dict from the name of a metric to its value.

    Returns:
        For each metric, a dict with mean, std, best (the minimum of a loss, otherwise the maximum)
        and seeds (the values by seed).
    """
    summary = {}
    for name in dict.fromkeys(name for metrics in results.values() for name in metrics):
        seeds = {str(seed): metrics[name] for seed, metrics in results.items() if name in metrics}
        values = list(seeds.values())
        std = standard_deviation(values)
        mean = statistics.fmean(values)
        summary[name] = {"mean": mean, "std": std, "best": best(name, values), "seeds": seeds}
    return summary


def add_differences(settings: Mapping[str, Summary]) -> None:
    """Add the difference to the first setting to the summary of each metric of the others.

    Differences are paired: only seeds that both settings have are used. The entries are
    `difference`, a mean over the seeds, and `interval`, its 95 % interval of Student's t
    distribution, which is missing for fewer than two seeds and for values that are not finite.
    """
    first, *others = settings.values()
    for summary in others:
        for name, entry in summary.items():
            base = first[name]["seeds"] if name in first else {}
            paired = [x - base[seed] for seed, x in entry["seeds"].items() if seed in base]
            is_finite = all(map(math.isfinite, paired))
            if paired:
                entry["difference"] = statistics.fmean(paired) if is_finite else math.nan
            if len(paired) > 1 and is_finite:
                entry["interval"] = list(mean_interval(paired))


def draw(
    titles: Sequence[str], height: float, plot: Callable[[Any, str], object], file: Path
) -> None:
    """Draw a panel for each title with `plot(axis, title)` into a PNG file; height is in inches."""
    from matplotlib.figure import Figure

    columns = min(2, len(titles))
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(PANEL_WIDTH * columns, height * rows), layout="tight")
    for number, title in enumerate(titles, 1):
        axis = figure.add_subplot(rows, columns, number)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        plot(axis, title)
    with atomic_path(file) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


def find_runs(folder: Path) -> list[Path]:
    """Return a run directory itself, or else the run directories below a folder.

    Raises:
        InputError: There is none.
    """
    configs = [folder / "config.yaml"] if (folder / "config.yaml").is_file() else ()
    if runs := sorted(file.parent for file in configs or folder.rglob("config.yaml")):
        return runs
    raise InputError("there is no run directory (with a config.yaml)", file=folder)


def show_runs(runs: Mapping[str, Path], out: Path | None) -> None:
    """Print the options that differ and the metrics of runs, and draw their curves into a PNG file.

    Args:
        runs: Run directories by a short name, which is the heading of a column.
        out: The PNG file; None draws nothing.
    """
    configs = {name: flatten(RunDirectory(run).recorded_config()) for name, run in runs.items()}
    differing = {}
    for option in dict.fromkeys(option for config in configs.values() for option in config):
        values = [json.dumps(config.get(option), default=str) for config in configs.values()]
        if len(set(values)) > 1 and option != "run_dir":
            differing[option] = values
    found = {name: read_metrics(run) for name, run in runs.items()}
    metrics = {
        metric: [f"{x[metric]:.4g}" if metric in x else "-" for x in found.values()]
        for metric in dict.fromkeys(metric for x in found.values() for metric in x)
    }
    lines = [f"{name}  {run}" for name, run in runs.items()]
    names = ("option or metric", *runs)
    metrics_report.show_rows("\n".join(lines), names, {**differing, **metrics})
    if out is None:
        return
    curves = {name: read_curves(run) for name, run in runs.items()}
    logged = sorted({metric for x in curves.values() for metric in x})
    shown = [name for name in logged if name == "train/loss" or name.startswith("val/")]
    if not shown:
        raise InputError("needs curves, but no metrics.csv of the runs has any", option="--out")

    def plot(axis: Any, metric: str) -> None:
        for i, (name, of_run) in enumerate(curves.items()):
            style = {"color": f"C{i}", "linestyle": ("-", "--", ":")[i // 10], "marker": "."}
            axis.plot(*of_run.get(metric, ((), ())), markersize=3, label=name, **style)
        axis.set_xlabel("optimizer step", fontsize=7)
        axis.legend(fontsize=7)

    draw(shown, CURVE_HEIGHT, plot, out)


def draw_settings(settings: Mapping[str, Summary], file: Path) -> None:
    """Draw mean, standard deviation and the values of all seeds of each setting."""

    def plot(axis: Any, metric: str) -> None:
        for row, summary in enumerate(settings.values()):
            if entry := summary.get(metric):
                values = list(entry["seeds"].values())
                axis.plot(values, [row] * len(values), "o", color="0.3", markersize=3, zorder=3)
                axis.errorbar(entry["mean"], row, xerr=entry["std"], fmt="|", color="C0", capsize=3)
        axis.set_yticks(range(len(settings)), list(settings))
        axis.set_ylim(len(settings) - 0.5, -0.5)
        axis.set_xlabel("dots: seeds; bars: mean and standard deviation", fontsize=7)

    metrics = dict.fromkeys(name for summary in settings.values() for name in summary)
    draw(list(metrics), 1.0 + ROW_HEIGHT * len(settings), plot, file)
