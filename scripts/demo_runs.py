"""The four runs of the demo: what each is given, who runs them, and how far they are."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from curves import read_curve

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "quickstart"
# Each task with its share of the work, the largest first.
TASKS = {"translation": 45, "masked_lm": 30, "causal_lm": 25, "images": 7}
QUICK = {
    "trainer.max_steps": "2",
    "trainer.val_check_interval": "2",
    "trainer.limit_val_batches": "1",
    "trainer.limit_test_batches": "1",
    "trainer.log_every_n_steps": "1",
}
QUICK_ROWS = "500"  # sentence pairs; making all of them takes seconds


def settings(task: str, quick: bool) -> list[str]:
    """The options that name a task's data and model."""
    options = ["--config", str(CONFIGS / f"{task}.yaml")]
    if quick and task == "translation":
        options += ["--data.init_args.rows", QUICK_ROWS]
    return options


def commands(task: str, folder: Path, quick: bool) -> list[list[str]]:
    """What `fourfold` is given for a task."""
    common = [*settings(task, quick), "--run_dir", str(folder / task)]
    if quick:
        common += [f"--{key}={value}" for key, value in QUICK.items()]
    verbs = ["fit", "test"]
    if task == "translation" and not quick:
        verbs.append("predict")  # predictions.txt: which kinds of sentences are right
    return [[verb, *common] for verb in verbs]


def lanes(n: int) -> list[list[str]]:
    """The tasks dealt out to at most `n` processes so that all take about as long."""
    dealt: list[list[str]] = [[] for _ in range(n)]
    for task in TASKS:
        min(dealt, key=lambda lane: sum(TASKS[t] for t in lane)).append(task)
    return [lane for lane in dealt if lane]


def run_lane(tasks: list[str], folder: Path, quick: bool) -> int:
    """Train and test some tasks, one after the other; returns the first exit code that is not 0."""
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
    """Cores that this process may use; the quota of a container counts, too."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    n = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or no quota: "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        n = min(n, round(int(quota) / int(period)))
    return max(1, n)


def state(task: str, folder: Path) -> str:
    """How far a task is, in a few characters."""
    if (folder / task / "seconds").is_file():
        return f"{task} done"
    losses = read_curve(folder / task / "metrics.csv", "train/loss")
    if not losses:
        return f"{task} 0%"
    step, loss = losses[-1]
    config = yaml.safe_load((CONFIGS / f"{task}.yaml").read_text(encoding="utf-8"))
    return f"{task} {min(100, 100 * (step + 1) // config['trainer']['max_steps'])}% loss {loss:.2f}"


def states(folder: Path) -> Iterator[str]:
    """`state` of all four."""
    return (state(task, folder) for task in TASKS)


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
