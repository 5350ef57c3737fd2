"""Measures the training speed of the rows of a table, one after another, in several rounds.

    FOURFOLD_DATA=DATA python scripts/measurements/bench_rows.py luong2015/multi30k OUT.csv
        [--rounds 3] [--threads 1]

Each row trains with the options of its first seed in a process of its own, for some seconds per
round. OUT.csv has the median of the rounds, the slowest and the fastest one for each row, or for
each training of a row that has several.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from lightning import Callback

from fourfold.commands.train.lightning_cli import FourfoldCLI, limit_warnings
from fourfold.commands.train.parser import import_classes
from fourfold.environment import machine
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.runs.plan import plan_runs
from fourfold.reproduce.runs.run import Machine

COLUMNS = ("row", "unit", "median", "slowest", "fastest", "rounds")
WARM_STEPS = 2  # steps before the clock starts, unless the first one takes SECONDS
SECONDS = 3.0  # duration of one measurement
OPTIONS = (
    *("--trainer.limit_val_batches=0", "--trainer.num_sanity_val_steps=0", "--log_samples=false"),
    *("--tensorboard=false", "--average_last_checkpoints=0", "--checkpoint.every_n_epochs=0"),
    *("--trainer.enable_progress_bar=false", "--resume=never"),
)


class Clock(Callback):
    """Callback that measures tokens or images per second, and stops the training."""

    rate = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.n_steps = self.n_units = 0
        self.started_at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.n_steps += 1
        self.n_units += pl_module.n_units(batch)
        elapsed = time.perf_counter() - self.started_at
        if elapsed >= SECONDS:
            self.rate = self.n_units / elapsed
            trainer.should_stop = True
        elif self.n_steps == WARM_STEPS:
            self.n_units, self.started_at = 0, time.perf_counter()


def measure(options: list[str], threads: int) -> tuple[float, str]:
    """Train for some seconds with options of `fourfold fit`; return the rate and its unit."""
    limit_warnings()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        import_classes()
        cli = FourfoldCLI(args=[*options, *OPTIONS, f"--run_dir={folder}/run"], run=False)
        clock = Clock()
        cli.trainer.callbacks.append(clock)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        return clock.rate, f"{cli.model.unit}/s"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("table", metavar="PAPER/TABLE")
    parser.add_argument("out", metavar="OUT.csv", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (3)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    options = parser.parse_args()
    (table,) = find_tables([options.table])
    runs = plan_runs(table, "laptop", table.rows_of("laptop"), 1, Path("runs"), Machine())
    rates = defaultdict(list)
    units = {}
    for _ in range(options.rounds):
        for run in runs:
            if run.fit:
                row = " ".join(filter(None, (run.row, run.part)))
                with get_context("spawn").Pool(1) as pool:
                    rate, units[row] = pool.apply(measure, (run.fit, options.threads))
                rates[row].append(rate)
                print(f"{row}: {rate:,.0f} {units[row]}", file=sys.stderr, flush=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row, values in rates.items():
            shown = (statistics.median(values), min(values), max(values))
            writer.writerow([row, units[row], *(round(value) for value in shown), len(values)])
    print(", ".join(f"{k} {v}" for k, v in machine(torch.device("cpu")).items() if v is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
