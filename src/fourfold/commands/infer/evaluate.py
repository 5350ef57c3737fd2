"""`evaluate`: accuracy of language models on BLiMP, Zorro, LAMBADA and tables of minimal pairs."""

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourfold.commands import compare_runs
from fourfold.commands.infer.devices import load_model
from fourfold.commands.metrics_report import write_metrics
from fourfold.errors import errors_in
from fourfold.generation import minimal_pairs as pairs
from fourfold.metrics.significance import difference_intervals

SIGNIFICANT = 0.05


def evaluate(options: Namespace, argv: Sequence[str]) -> int:
    """Evaluate checkpoints as the command does, print a table, and return 0.

    Raises:
        InputError: A file, a checkpoint or a text is invalid.
    """
    paths = {chr(ord("A") + i): path for i, path in enumerate(options.checkpoint)}
    questions = pairs.read_questions(options.benchmark, options.file)
    models = {letter: _answer_runs(path, questions, options) for letter, path in paths.items()}
    tables = pairs.tabulate(questions, models)
    show(tables)
    paradigms, intervals = list(pairs.items_by("paradigm", questions).values()), {}
    for letter, path in paths.items():
        nats, near = (tables["all"][0][f"{letter} {key}"] for key in ("nats", "near"))
        shown = f"mean log-probability {nats:.4f}, near ties (below {pairs.NEAR_TIE} nats): {near}"
        print(f"{letter}: {path}, runs: {len(models[letter])}, {shown}")
    for name, letter in ((f"{letter}-A", letter) for letter in [*paths][1:]):
        a, b = (100.0 * (models[x][:, 1] > 0) for x in ("A", letter))
        intervals[name] = found = difference_intervals(a, b, paradigms)
        shown = ", ".join(f"{key} [{x:+.2f}, {y:+.2f}]" for key, (x, y) in found.items())
        n = sum(row[f"p({name})"] < SIGNIFICANT for row in tables["paradigms"])
        print(f"{name}: {tables['all'][0][name]:+.2f}, 95 % intervals over {shown};", end=" ")
        print(f"p < {SIGNIFICANT} in {n} of {len(paradigms)} paradigms (Holm)")
    if options.out is not None:
        content = {**tables, "models": paths, "intervals": intervals}
        command = {"command": shlex.join(["fourfold", *argv])}
        write_metrics(Path(options.out, "metrics.json"), content, command)
        draw([tables["all"][0], *tables["groups"]], paths, Path(options.out, "accuracy.png"))
    return 0


def _answer_runs(path: str, questions: Sequence[pairs.Question], options: Namespace) -> np.ndarray:
    """Return values (S, 2, N) of `answer` of a checkpoint, or of runs of `fourfold seeds`."""
    given = {"method": options.method, "eos": options.eos, "batch_size": options.batch_size}
    found = []
    runs = [str(run) for run in sorted(Path(path).glob("seed_*")) if run.is_dir()]
    for run in runs or [path]:
        place, model, precision = load_model(run, options)
        with errors_in(place), torch.inference_mode(), precision:
            found.append(pairs.answer(model, questions, **given))
    return np.stack(found)


def show(tables: Mapping[str, pairs.Rows]) -> None:
    """Print a table of scores in percent; groups that are the paradigms are left out."""
    keys = [key for key in tables["all"][0] if not key.endswith((" near", " nats", " seeds"))]
    width = 2 + max(len(row[""]) for rows in tables.values() for row in rows)
    print(" " * width + "".join(f"{key:>9}" for key in keys[1:]))
    for kind, rows in tables.items():
        if kind == "groups" and len(rows) in (1, len(tables["paradigms"])):
            continue
        for row in rows:
            cells = (row.get(key, "") for key in keys[1:])
            shown = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells)
            print(row[""].ljust(width) + "".join(f"{cell:>9}" for cell in shown))
        print()


def draw(rows: pairs.Rows, paths: Mapping[str, str], file: Path) -> None:
    """Draw the accuracy of each model in each row, with intervals, into a PNG file."""

    def plot(axis: Any, title: str) -> None:
        for i, (letter, path) in enumerate(paths.items(), 1):
            x, low, high = ([row[letter + end] for row in rows] for end in ("", " low", " high"))
            y = [place + 0.6 * i / (len(paths) + 1) - 0.3 for place in range(len(rows))]
            axis.plot(x, y, "o", markersize=4, label=f"{letter}: {path}")
            axis.hlines(y, low, high, colors=axis.lines[-1].get_color())
        axis.set_yticks(range(len(rows)), [row[""] for row in rows])
        axis.invert_yaxis()
        axis.legend(fontsize=7)

    title = "accuracy in percent, with 95 % intervals over items"
    compare_runs.draw((title,), 1.5 + 0.3 * len(rows), plot, file)
