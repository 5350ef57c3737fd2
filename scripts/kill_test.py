"""Kills trainings at random moments, starts them again, and compares what they end with.

    python scripts/kill_test.py [--kills 100] [--seed 0] [--only WORD] [--work DIR] [--out DIR]

Each case is trained once to its end, and then killed (SIGKILL to all its processes) at a moment
drawn uniformly from the time that training took, and started again with the same command. Every
checkpoint must then hold the same bits (weights, averages, optimizer, schedule, place in the data,
counters), and metrics.csv the same rows. DIR gets kills.csv and table.md.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.kill_cases import Case, cases, write_files  # noqa: E402

LIMIT = 300.0  # seconds that a training may take at most
CLOCK = "per_second"  # columns of metrics.csv that no two runs share


class Kill(NamedTuple):
    """What came of one."""

    task: str
    setting: str
    after: float  # seconds since the command
    step: str  # of last.ckpt at that moment
    same: bool
    differs: str


def start(case: Case, run: Path) -> int:
    """Begin a training in a child, with its own process group; return its number."""
    number = os.fork()
    if number:
        os.setpgid(number, number)
        return number
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


def wait(number: int, until: float) -> int | None:
    """The exit code of a child; None if it still runs at that time."""
    while time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def finish(case: Case, run: Path) -> tuple[float, float]:
    """Train to the end; seconds until training began, and until it ended.

    Raises:
        SystemExit: It failed.
    """
    began, started = time.monotonic(), None
    number = start(case, run)
    while (code := wait(number, time.monotonic() + 0.01)) is None:
        if started is None and (run / "config.yaml").exists():
            started = time.monotonic() - began
        if time.monotonic() - began > LIMIT:
            os.killpg(number, signal.SIGKILL)
            code = wait(number, time.monotonic() + LIMIT)
            break
    if code:
        sys.exit(f"{case.task}, {case.setting}: ended with {code}; see {run.with_suffix('.log')}")
    whole = time.monotonic() - began
    return started or whole, whole


def kill(case: Case, run: Path, after: float) -> str | None:
    """Begin a training and end it so many seconds later; the step of its last checkpoint.

    None if it was over by then.
    """
    import torch

    number = start(case, run)
    if wait(number, time.monotonic() + after) is not None:
        return None
    os.killpg(number, signal.SIGKILL)
    wait(number, time.monotonic() + LIMIT)
    last = run / "checkpoints/last.ckpt"
    writing = "+" if list(run.glob("checkpoints/*.part")) else ""
    if not last.is_file():
        return "none" + writing
    return str(torch.load(last, weights_only=True)["global_step"]) + writing


def difference(one: Path, other: Path) -> str:
    """What differs between two run directories; empty if nothing does."""
    names = [sorted(f.name for f in run.glob("checkpoints/*.ckpt")) for run in (one, other)]
    if names[0] != names[1]:
        return f"checkpoints {names[0]} and {names[1]}"
    import torch

    for name in names[0]:
        a, b = (torch.load(run / "checkpoints" / name, weights_only=True) for run in (one, other))
        if found := unequal(a, b):
            return f"{name}: {found}"
    if rows(one) != rows(other):
        return "metrics.csv"
    return ""


def unequal(a: Any, b: Any, path: str = "") -> str:
    """The first place at which two nested structures differ, to the last bit."""
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
    """A tensor's bytes, so that NaN equals NaN and -0 is not 0."""
    import torch

    return x.contiguous().flatten().view(torch.uint8) if x.numel() else x


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, but for what the clock says."""
    with (run / "metrics.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.endswith(CLOCK)} for row in found]


def test(case: Case, folder: Path, kills: int, rng: random.Random) -> list[Kill]:
    """Train once, then be killed and start again so often."""
    import shutil

    began, ended = finish(case, folder / "whole")
    results = []
    for number in range(kills):
        run, step = folder / f"killed_{number}", None
        while step is None:
            shutil.rmtree(run, ignore_errors=True)
            after = rng.uniform(began, ended)
            step = kill(case, run, after)
            if (
                step is None
            ):  # this one was faster than the first, which may have met a busy machine
                began, ended = min(began, after / 2), after
        finish(case, run)
        found = difference(folder / "whole", run)
        results.append(Kill(case.task, case.setting, round(after, 2), step, not found, found))
        if not found:
            shutil.rmtree(run)
    return results


def table(kills: list[Kill]) -> str:
    """Tasks by settings: how many of how many ended the same."""
    settings = list(dict.fromkeys(kill.setting for kill in kills))
    done = Counter((kill.task, kill.setting) for kill in kills)
    same = Counter((kill.task, kill.setting) for kill in kills if kill.same)
    lines = [f"| | {' | '.join(settings)} |", "| --- " * (len(settings) + 1) + "|"]
    for task in dict.fromkeys(kill.task for kill in kills):
        cells = [
            f"{same[task, setting]} of {n}" if (n := done[task, setting]) else ""
            for setting in settings
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=2, help="kills of a case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases with this in their task or setting")
    parser.add_argument("--work", type=Path, help="where the trainings go; default: a new folder")
    parser.add_argument("--out", type=Path, help="where kills.csv and table.md go")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # a child of a process with threads of its own would hang
    import fourfold.commands.training
    import fourfold.tasks  # noqa: F401

    work = options.work or Path(tempfile.mkdtemp(prefix="kill_test_"))
    work.mkdir(parents=True, exist_ok=True)
    write_files(work)
    rng, kills = random.Random(options.seed), list[Kill]()
    wanted = cases(work, -(-options.kills // options.each), options.only)
    for number, case in enumerate(wanted):
        folder = work / f"{number:03d}"
        folder.mkdir()
        kills += test(case, folder, min(options.each, options.kills - len(kills)), rng)
        for done in kills[-options.each :]:
            print(f"{len(kills):3d}  {done.task}, {done.setting}: killed after {done.after} s, last"
                  f" checkpoint {done.step}: {done.differs or 'the same'}", flush=True)  # fmt: skip
    text = f"{sum(kill.same for kill in kills)} of {len(kills)} ended bitwise the same\n\n"
    text += table(kills) + "\n"
    print(f"\n{text}", end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(text)
        with (options.out / "kills.csv").open("w", newline="") as file:
            csv.writer(file).writerows([Kill._fields, *kills])
    return 0 if all(kill.same for kill in kills) else 1


if __name__ == "__main__":
    sys.exit(main())
