"""Training runs of the demo: options, distribution over processes, and progress."""

import csv
import os
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "quickstart"
# Tasks and their relative durations, longest first.
TASKS = {"translation": 33, "masked_lm": 30, "causal_lm": 14, "images": 7}
QUICK = {
    "trainer.max_steps": "2",
    "trainer.val_check_interval": "2",
    "trainer.limit_val_batches": "1",
    "trainer.limit_test_batches": "1",
    "trainer.log_every_n_steps": "1",
}
QUICK_ROWS = "500"  # sentence pairs; generating all of them takes seconds


def settings(task: str, quick: bool) -> list[str]:
    """Return the options that select a task's data and model."""
    options = ["--config", str(CONFIGS / f"{task}.yaml")]
    if quick and task == "translation":
        options += ["--data.init_args.rows", QUICK_ROWS]
    return options


def commands(task: str, folder: Path, quick: bool) -> list[list[str]]:
    """Return the arguments of the `fourfold` commands of a task."""
    common = [*settings(task, quick), "--run_dir", str(folder / task)]
    if quick:
        common += [f"--{key}={value}" for key, value in QUICK.items()]
    return [[verb, *common] for verb in ("fit", "test")]


def lanes(n: int) -> list[list[str]]:
    """Distribute the tasks over at most `n` processes of similar duration."""
    groups: list[list[str]] = [[] for _ in range(n)]
    for task in TASKS:
        min(groups, key=lambda lane: sum(TASKS[t] for t in lane)).append(task)
    return [lane for lane in groups if lane]


def run_lane(tasks: list[str], folder: Path, quick: bool) -> int:
    """Train and test tasks one after another; return the first nonzero exit code."""
    from fourfold.cli import main as fourfold

    for task in tasks:
        begun = time.monotonic()
        for command in commands(task, folder, quick):
            print("$ fourfold", *command, flush=True)
            if code := fourfold(command):
                return code
        (folder / task / "seconds").write_text(f"{time.monotonic() - begun:.0f}\n")
    return 0


def cores() -> int:
    """Count the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def read_curve(file: Path, column: str) -> list[tuple[int, float]]:
    """Read the steps and values of a column of a metrics.csv; none if the file is missing."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as opened:
        rows = [(row.get("step"), row.get(column)) for row in csv.DictReader(opened)]
    return [(int(step), float(value)) for step, value in rows if step and value]


def state(task: str, folder: Path) -> str:
    """Describe the progress of a task."""
    if (folder / task / "seconds").is_file():
        return f"{task} done"
    losses = read_curve(folder / task / "metrics.csv", "train/loss")
    if not losses:
        return f"{task} 0%"
    step, loss = losses[-1]
    config = yaml.safe_load((CONFIGS / f"{task}.yaml").read_text(encoding="utf-8"))
    return f"{task} {min(100, 100 * (step + 1) // config['trainer']['max_steps'])}% loss {loss:.2f}"


def states(folder: Path) -> Iterator[str]:
    """Describe the progress of all tasks."""
    return (state(task, folder) for task in TASKS)


def clock(seconds: float) -> str:
    """Format seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
