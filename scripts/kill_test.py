"""Kills trainings at random moments, resumes them, and compares the results bit by bit.

    python scripts/kill_test.py [--kills 100] [--damage] [--seed 0] [--only NAME ...]
        [--work DIR] [--out DIR]

Each case is trained once without interruption. Then it is killed (SIGKILL to all of its processes)
at a time drawn uniformly from the duration of that training, and resumed with the same command.
All checkpoints must then have the same bits (weights, averages, optimizer, schedule, position in
the data, counters), and metrics.csv the same rows. DIR receives kills.csv and table.md.

With --damage, some of last.ckpt, config.yaml and metrics.csv are damaged after each kill: replaced
by random bytes or by a directory, truncated, emptied, or changed by one bit. Only the rows of
metrics.csv since the checkpoint from which the training resumes are then compared.
"""

import argparse
import csv
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.kill_cases import Case, cases, damage_some, write_files  # noqa: E402

TIMEOUT = 300.0  # seconds of one training
TIMED_SUFFIX = "per_second"  # of columns of metrics.csv that depend on the speed


class Kill(NamedTuple):
    """Result of one kill."""

    task: str
    setting: str
    after: float  # seconds since the start
    step: str  # of last.ckpt when the training was killed
    equal: bool
    difference: str
    damage: str = ""  # files that were damaged before the training was resumed


def start(case: Case, run: Path) -> int:
    """Start a training in a child process with its own process group; return its id."""
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    try:
        log = os.open(run.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from fourfold.cli import main

        code = main(["fit", *case.options, "--run_dir", str(run)])
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 70
    finally:
        sys.stderr.flush()
    os._exit(code)


def wait(pid: int, until: float) -> int | None:
    """Return the exit code of a child, None if it still runs at the time `until`."""
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def finish(case: Case, run: Path) -> tuple[float, float]:
    """Train to the end; return the seconds until training started, and until it ended.

    Raises:
        SystemExit: The training failed.
    """
    began = time.monotonic()
    started = None
    pid = start(case, run)
    while (code := wait(pid, time.monotonic() + 0.01)) is None:
        if started is None and (run / "config.yaml").exists():
            started = time.monotonic() - began
        if time.monotonic() - began > TIMEOUT:
            os.killpg(pid, signal.SIGKILL)
            code = wait(pid, time.monotonic() + TIMEOUT)
            break
    if code:
        sys.exit(f"{case.task}, {case.setting}: ended with {code}; see {run.with_suffix('.log')}")
    ended = time.monotonic() - began
    return started or ended, ended


def kill(case: Case, run: Path, after: float) -> str | None:
    """Start a training and kill it; return the step of its last checkpoint.

    Returns None if the training ended before `after` seconds.
    """
    pid = start(case, run)
    if wait(pid, time.monotonic() + after) is not None:
        return None
    os.killpg(pid, signal.SIGKILL)
    wait(pid, time.monotonic() + TIMEOUT)
    writing = "+" if list(run.glob("checkpoints/*.part")) else ""
    if not (run / "checkpoints/last.ckpt").is_file():
        return "none" + writing
    return str(step_of(run, "last")) + writing


def step_of(run: Path, name: str) -> int:
    """Return the step of a checkpoint, 0 if the checkpoint does not exist."""
    import torch

    file = run / f"checkpoints/{name}.ckpt"
    return int(torch.load(file, weights_only=True)["global_step"]) if file.is_file() else 0


def difference(one: Path, other: Path, first: int = 0) -> str:
    """Describe the first difference of two run directories; empty if they are equal.

    Args:
        one: A run directory.
        other: Another run directory.
        first: Step of the first row of metrics.csv that is compared.
    """
    names = [sorted(f.name for f in run.glob("checkpoints/*.ckpt")) for run in (one, other)]
    if names[0] != names[1]:
        return f"checkpoints {names[0]} and {names[1]}"
    import torch

    for name in names[0]:
        a, b = (torch.load(run / "checkpoints" / name, weights_only=True) for run in (one, other))
        path = unequal(a, b)
        if path:
            return f"{name}: {path}"
    if rows(one, first) != rows(other, first):
        return "metrics.csv"
    return "" if is_config(other / "config.yaml") else "config.yaml"


def is_config(file: Path) -> bool:
    """Return True if a file holds a YAML mapping."""
    try:
        return isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, yaml.YAMLError):
        return False


def unequal(a: Any, b: Any, path: str = "") -> str:
    """Return the path of the first bitwise difference of two nested structures."""
    import torch

    if type(a) is not type(b):
        return f"{path} is {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        return "" if same and torch.equal(bits(a), bits(b)) else path
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"keys of {path or 'the checkpoint'}: {sorted(map(str, a.keys() ^ b.keys()))}"
        return next((found for k in a if (found := unequal(a[k], b[k], f"{path}.{k}"))), "")
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"length of {path}"
        pairs = enumerate(zip(a, b, strict=True))
        return next((found for i, (x, y) in pairs if (found := unequal(x, y, f"{path}.{i}"))), "")
    return "" if a == b or (a != a and b != b) else f"{path}: {a} and {b}"


def bits(x: Any) -> Any:
    """View a tensor as bytes, so that NaN equals NaN and -0 differs from 0."""
    import torch

    return x.contiguous().flatten().view(torch.uint8) if x.numel() else x


def rows(run: Path, first: int = 0) -> list[dict[str, str]]:
    """Read the values of metrics.csv after step `first`, except those that depend on the speed.

    A run that was complete when its damaged metrics.csv was set aside has no metrics.csv.
    """
    if not (run / "metrics.csv").exists():
        return []
    with (run / "metrics.csv").open(newline="") as file:
        content = [row for row in csv.DictReader(file) if int(row["step"]) > first]
    return [
        {name: value for name, value in row.items() if value and not name.endswith(TIMED_SUFFIX)}
        for row in content
    ]


def test(case: Case, folder: Path, kills: int, rng: random.Random, damages: bool) -> list[Kill]:
    """Train a case once without interruption, then kill and resume it `kills` times."""
    import shutil

    began, ended = finish(case, folder / "uninterrupted")
    results = []
    for number in range(kills):
        run = folder / f"killed_{number}"
        step = None
        while step is None:
            shutil.rmtree(run, ignore_errors=True)
            after = rng.uniform(began, ended)
            step = kill(case, run, after)
            if step is None:  # faster than the first training, when the machine may have been busy
                began = min(began, after / 2)
                ended = after
        first, damaged = 0, {}
        if damages:
            files = [*run.glob("checkpoints/step=*.ckpt"), *run.glob("checkpoints/[lp]*.ckpt")]
            steps = {file.name: step_of(run, file.stem) for file in files}
            damaged = damage_some(run, rng)
            intact = [n for name, n in steps.items() if f"checkpoints/{name}" not in damaged]
            first = max(intact, default=0)  # the training resumes from the newest intact file
        finish(case, run)
        differs = difference(folder / "uninterrupted", run, first)
        text = ", ".join(f"{Path(name).name} {way}" for name, way in damaged.items())
        when = round(after, 2)
        results.append(Kill(case.task, case.setting, when, step, not differs, differs, text))
        if not differs:
            shutil.rmtree(run)
    return results


def table(kills: list[Kill]) -> str:
    """Format a table of tasks by settings: how many resumed trainings were bitwise equal."""
    settings = list(dict.fromkeys(kill.setting for kill in kills))
    done = Counter((kill.task, kill.setting) for kill in kills)
    equal = Counter((kill.task, kill.setting) for kill in kills if kill.equal)
    lines = [f"| | {' | '.join(settings)} |", "| --- " * (len(settings) + 1) + "|"]
    for task in dict.fromkeys(kill.task for kill in kills):
        cells = [
            f"{equal[task, setting]} of {n}" if (n := done[task, setting]) else ""
            for setting in settings
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=2, help="kills of each case")
    parser.add_argument("--damage", action="store_true", help="damage files after each kill")
    parser.add_argument("--seed", type=int, default=0)
    help_text = "substrings, of which the task or the setting of a case contains one"
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help=help_text)
    parser.add_argument("--work", type=Path, help="directory of the trainings (default: a new one)")
    parser.add_argument("--out", type=Path, help="directory of kills.csv and table.md")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # a forked child of a process with threads would hang
    import fourfold.commands.train.lightning_cli
    import fourfold.tasks  # noqa: F401

    work = options.work or Path(tempfile.mkdtemp(prefix="kill_test_"))
    work.mkdir(parents=True, exist_ok=True)
    write_files(work)
    rng = random.Random(options.seed)
    kills: list[Kill] = []
    selected = cases(work, -(-options.kills // options.each), options.only)
    for number, case in enumerate(selected):
        folder = work / f"{number:03d}"
        folder.mkdir()
        n = min(options.each, options.kills - len(kills))
        kills += test(case, folder, n, rng, options.damage)
        for done in kills[-options.each :]:
            print(
                f"{len(kills):3d}  {done.task}, {done.setting}: killed after {done.after} s,"
                f" last checkpoint {done.step}{f', {done.damage}' if done.damage else ''}:"
                f" {done.difference or 'bitwise equal'}",
                flush=True,
            )
    text = f"{sum(kill.equal for kill in kills)} of {len(kills)} were bitwise equal\n\n"
    text += table(kills) + "\n"
    print(f"\n{text}", end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(text)
        with (options.out / "kills.csv").open("w", newline="") as file:
            csv.writer(file).writerows([Kill._fields, *kills])
    return 0 if all(kill.equal for kill in kills) else 1


if __name__ == "__main__":
    sys.exit(main())
