"""Measures training of the laptop recipes as shipped, in fp32 and in bf16, on an idle machine.

    FOURFOLD_DATA=DATA python scripts/bench_precisions.py OUT.md [--recipe NAME ...] [--limit 60]

Each recipe is trained in its own process. The precisions take turns: each one is trained for some
seconds per round, and the table has the median of the rounds in tokens or images per second. A
recipe takes at most `--limit` seconds, so that all take less than 12 minutes; what was measured by
then is reported. Recipes whose data are missing are listed with the reason.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from lightning import Callback

from fourfold.commands.train.config_files import expand_arguments
from fourfold.commands.train.lightning_cli import FourfoldCLI, limit_warnings
from fourfold.core.precision import describe_bf16
from fourfold.environment import machine

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = {"as shipped": None, "32-true": "32-true", "bf16-mixed": "bf16-mixed"}
N_ROUNDS = 2
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
        """Start the clock."""
        self.n_steps = self.n_units = 0
        self.started_at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; restart the clock after the warm-up, and stop after `SECONDS`."""
        self.n_steps += 1
        self.n_units += pl_module.n_units(batch)
        elapsed = time.perf_counter() - self.started_at
        if elapsed >= SECONDS:
            self.rate = self.n_units / elapsed
            trainer.should_stop = True
        elif self.n_steps == WARM_STEPS:
            self.n_units, self.started_at = 0, time.perf_counter()


def measure(recipe: str) -> None:
    """Measure a recipe in this process, and print one line of JSON for each measurement."""
    limit_warnings()
    data = None
    for _ in range(N_ROUNDS):
        for name, precision in PRECISIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                options = ["--config", recipe, *OPTIONS, f"--run_dir={folder}/run"]
                options += [f"--trainer.precision={precision}"] if precision else []
                cli = FourfoldCLI("fit", expand_arguments(options))
                data = cli.datamodule = data or cli.datamodule  # its files are read once
                clock = Clock()
                cli.trainer.callbacks.append(clock)
                cli.trainer.fit(cli.model, datamodule=data)
                result = {"name": name, "rate": clock.rate, "unit": cli.model.unit}
                print(json.dumps({**result, "precision": cli.trainer.precision}), flush=True)


def run(recipe: str, limit: float) -> str:
    """Measure a recipe in a process of its own, and return its row of the table."""
    command = [sys.executable, __file__, "-", "--recipe", recipe]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=out, stderr=errors, cwd=ROOT)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            child.kill()
            child.wait()
        out.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in out if line.startswith('{"name"')]
        message = (errors.read().strip().splitlines() or ["no message"])[-1]
    if code or not lines:
        reason = message if code else f"no measurement within {limit:g} s"
        reason = reason.rpartition("InputError: ")[2].replace("|", " ")
        return f"| {recipe} | skipped: {reason} | | | | | |"
    rates = defaultdict(list)
    for line in lines:
        rates[line["name"]].append(line["rate"])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    cells = [f"{medians[n]:,.0f}" if n in medians else "not reached" for n in PRECISIONS]
    chosen = next(line["precision"] for line in lines if line["name"] == "as shipped")
    share = medians["as shipped"] / max(medians.values())
    unit = lines[0]["unit"]
    return f"| {recipe} | {unit}/s | {chosen} | {' | '.join(cells)} | {share:.2f} |"


def main() -> int:
    """Measure the recipes, print each row when it is known, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", metavar="OUT.md")
    parser.add_argument("--recipe", nargs="+", help="default: all whose name begins with laptop")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one recipe (60)")
    options = parser.parse_args()
    if options.out == "-":  # the process of one recipe
        measure(options.recipe[0])
        return 0
    files = sorted((ROOT / "configs").glob("*/laptop*.yaml"))
    recipes = options.recipe or [f"{file.parent.name}/{file.stem}" for file in files]
    about = machine(torch.device("cpu"))
    lines = [
        "# Training of the laptop recipes, by precision",
        "",
        ", ".join(f"{key} {value}" for key, value in about.items() if value is not None)
        + f"; {describe_bf16()}.",
        "",
        "| recipe | unit | chosen | as shipped | 32-true | bf16-mixed | of the fastest |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines), flush=True)
    for number, recipe in enumerate(recipes, 1):
        print(f"{number}/{len(recipes)}: {recipe}", file=sys.stderr, flush=True)
        lines.append(run(recipe, options.limit))
        print(lines[-1], flush=True)
        Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
