"""Stops trainings by signals at random moments, resumes them, and compares the results bit by bit.

    python scripts/tools/kill_test.py [--kills 100] [--signals KILL TERM INT] [--damage] [--seed 0]
        [--only NAME ...] [--work DIR] [--out DIR]

Each case is trained once without interruption. Then it receives a signal, and is resumed with the
same command. Drawn at random are the signal, its receiver (the group of all processes, the process
that was started, one rank, or one worker that prepares batches) and the moment (`MOMENTS`).

All checkpoints must then have the same bits (weights, averages, optimizer, schedule, position in
the data, counters), and metrics.csv the same rows. After SIGTERM and SIGINT, previous.ckpt is not
compared, since it is the checkpoint that the stop saved. No process may be left a minute after the
signal, unless the training goes on. DIR receives kills.csv and table.md.

With --damage, some of last.ckpt, config.yaml and metrics.csv are damaged after each signal:
replaced by random bytes or by a directory, truncated, emptied, or changed by one bit. Only the rows
of metrics.csv since the checkpoint from which the training resumes are then compared.
"""

import argparse
import csv
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.tools.kill_cases import Case, cases, damage_some, write_files  # noqa: E402

TIMEOUT = 300.0  # seconds of one training
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT")}
MOMENTS = ("start", "training", "epoch end", "validation", "resume")
# Ends of the columns of metrics.csv that depend on the speed or on the device.
TIMED = ("per_second", "data_wait", "mfu", "peak_memory_gib")


class Kill(NamedTuple):
    """Result of one signal."""

    task: str
    setting: str
    signal: str
    receiver: str
    moment: str
    after: float  # seconds since the start
    code: int | str  # exit code after the signal
    step: str  # of last.ckpt when the training had ended
    equal: bool
    difference: str
    damage: str = ""  # files that were damaged before the training was resumed


class Plan(NamedTuple):
    """Signal to send, the process that receives it, and the moment."""

    signal: str
    receiver: str
    moment: str


def draw_plan(case: Case, signals: Sequence[str], rng: random.Random) -> Plan:
    """Draw a signal, a receiver that a training of this case has, and a moment."""
    options = " ".join(case.options)
    one = ["rank"] if "trainer.devices=2" in options else []
    one += ["worker"] if "data.num_workers=" in options else []
    receivers = ["group", "process", *2 * one]
    return Plan(rng.choice(signals), rng.choice(receivers), rng.choice(MOMENTS))


def start(case: Case, run: Path, plan: Path | None = None) -> int:
    """Start a training in a child process with its own process group; return its id."""
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        os.environ["KILL_PLAN"] = str(plan or "")
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
    """Train to the end; return the seconds until training started, and until it ended."""
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


def processes() -> list[tuple[int, int, int]]:
    """Return the id, the id of the parent and the group of each process that has not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, group = file.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                found.append((int(file.parent.name), int(parent), int(group)))
    return found


def send(pid: int, plan: Plan, rng: random.Random) -> str:
    """Send the signal; return its receiver, the first process if there is no rank or worker yet."""
    number = SIGNALS[plan.signal]
    children = sorted(child for child, parent, _ in processes() if parent == pid)
    if plan.receiver == "group":
        os.killpg(pid, number)
    elif plan.receiver == "process" or not children:
        os.kill(pid, number)
        return "process"
    else:
        os.kill(rng.choice(children), number)
    return plan.receiver


def interrupt(
    case: Case, run: Path, plan: Plan, after: float, rng: random.Random
) -> tuple[str, int | str, float] | None:
    """Start a training and send it a signal; return None if the training ended before.

    Otherwise return the receiver, the exit code (a text if processes are left after a minute) and
    the seconds until the signal.
    """
    began = time.monotonic()
    file = run.with_suffix(".plan")
    reached = run.with_suffix(".plan.reached")
    if waits := plan.moment in ("epoch end", "validation"):
        file.write_text(f"{plan.moment} {rng.randint(1, 2)}")
    pid = start(case, run, file)
    until = began + (TIMEOUT if waits else after)
    while not reached.exists() and time.monotonic() < until:
        if wait(pid, min(until, time.monotonic() + 0.01)) is not None:
            return None
    seconds = time.monotonic() - began
    receiver = send(pid, plan, rng)
    time.sleep(0.1)
    file.unlink(missing_ok=True)
    reached.unlink(missing_ok=True)
    code = wait(pid, time.monotonic() + TIMEOUT)
    until = time.monotonic() + 60
    while any(group == pid for _, _, group in processes()) and time.monotonic() < until:
        time.sleep(0.02)
    if any(group == pid for _, _, group in processes()):
        os.killpg(pid, signal.SIGKILL)
        return receiver, "processes left", seconds
    return receiver, "none" if code is None else code, seconds


def last_step(run: Path) -> str:
    """Return the step of last.ckpt, with a "+" if a file was not written completely."""
    writing = "+" if list(run.glob("checkpoints/*.part")) else ""
    exists = (run / "checkpoints/last.ckpt").exists()
    return (str(step_of(run, "last")) if exists else "none") + writing


def step_of(run: Path, name: str) -> int:
    """Return the step of a checkpoint, 0 if the checkpoint does not exist."""
    from fourfold.checkpoints.files import read_file

    file = run / f"checkpoints/{name}.ckpt"
    return int(read_file(file)["global_step"]) if file.exists() else 0


def difference(one: Path, other: Path, first: int = 0, saved_on_stop: bool = False) -> str:
    """Describe the first difference of two run directories; empty if they are equal.

    Rows of metrics.csv are compared after step `first`. `saved_on_stop` leaves out previous.ckpt,
    and the step of last.ckpt that the best checkpoints hold.
    """
    names = [sorted(f.name for f in run.glob("checkpoints/*.ckpt")) for run in (one, other)]
    if saved_on_stop:
        names = [[name for name in found if name != "previous.ckpt"] for found in names]
    if names[0] != names[1]:
        return f"checkpoints {names[0]} and {names[1]}"
    from fourfold.checkpoints.files import read_file

    for name in names[0]:
        a, b = (read_file(run / "checkpoints" / name) for run in (one, other))
        for content in (a, b):
            content.pop("metrics_csv_rows", None)  # smaller if the file was damaged
            if saved_on_stop:
                content.get("callbacks", {}).get("RunCheckpoints", {}).pop("saved_step", None)
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
        {name: value for name, value in row.items() if value and not name.endswith(TIMED)}
        for row in content
    ]


def test(
    case: Case, folder: Path, kills: int, rng: random.Random, damages: bool, signals: Sequence[str]
) -> list[Kill]:
    """Train a case once without interruption, then interrupt and resume it `kills` times."""
    began, ended = finish(case, folder / "uninterrupted")
    results = []
    for number in range(kills):
        run = folder / f"killed_{number}"
        plan = draw_plan(case, signals, rng)
        stop = None
        while stop is None:
            shutil.rmtree(run, ignore_errors=True)
            first_plan = Plan("KILL", "group", "training") if plan.moment == "resume" else plan
            after = rng.uniform(*((0, began) if plan.moment == "start" else (began, ended)))
            stop = interrupt(case, run, first_plan, after, rng)
            if stop and plan.moment == "resume":
                after = rng.uniform(0.3 * began, 0.7 * began + 0.3 * ended)
                stop = interrupt(case, run, plan, after, rng)
            elif stop is None:
                # Faster than the first training, when the machine may have been busy.
                began = min(began, after / 2)
                ended = max(after, 2 * began)
        receiver, code, seconds = stop
        step = last_step(run)
        first, damaged = 0, {}
        if damages:
            files = [*run.glob("checkpoints/step=*.ckpt"), *run.glob("checkpoints/[lp]*.ckpt")]
            steps = {file.name: step_of(run, file.stem) for file in files}
            damaged = damage_some(run, rng)
            intact = [n for name, n in steps.items() if f"checkpoints/{name}" not in damaged]
            first = max(intact, default=0)  # the training resumes from the newest intact file
        finish(case, run)
        differs = difference(folder / "uninterrupted", run, first, plan.signal != "KILL")
        if isinstance(code, str):
            differs = f"the training did not end: {code}"
        text = ", ".join(f"{Path(name).name} {way}" for name, way in damaged.items())
        results.append(
            Kill(
                *(case.task, case.setting, plan.signal, receiver, plan.moment),
                *(round(seconds, 2), code, step, not differs, differs, text),
            )
        )
        if not differs:
            shutil.rmtree(run)
    return results


def table(kills: list[Kill], row: Callable[[Kill], str], column: Callable[[Kill], str]) -> str:
    """Format a table of the numbers of resumed trainings that were bitwise equal."""
    columns = list(dict.fromkeys(map(column, kills)))
    done = Counter((row(kill), column(kill)) for kill in kills)
    equal = Counter((row(kill), column(kill)) for kill in kills if kill.equal)
    lines = [f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(map(row, kills)):
        cells = [f"{equal[name, c]} of {n}" if (n := done[name, c]) else "" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=2, help="kills of each case")
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    parser.add_argument("--damage", action="store_true", help="damage files after each signal")
    parser.add_argument("--seed", type=int, default=0)
    help_text = "substrings, of which the task or the setting of a case contains one"
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help=help_text)
    parser.add_argument("--work", type=Path, help="directory of the trainings (default: a new one)")
    parser.add_argument("--out", type=Path, help="directory of kills.csv and table.md")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # a forked child of a process with threads would hang
    import fourfold.commands.train.lightning_cli  # noqa: F401
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
        kills += test(case, folder, n, rng, options.damage, options.signals)
        for done in kills[-n:]:
            print(
                f"{len(kills):3d}  {done.task}, {done.setting}: SIG{done.signal} to {done.receiver}"
                f" ({done.moment}) after {done.after} s, exit code {done.code},"
                f" last checkpoint {done.step}{f', {done.damage}' if done.damage else ''}:"
                f" {done.difference or 'bitwise equal'}",
                flush=True,
            )
    text = f"{sum(kill.equal for kill in kills)} of {len(kills)} were bitwise equal\n\n"
    text += table(kills, lambda kill: kill.task, lambda kill: kill.setting) + "\n\n"
    text += table(kills, lambda k: f"SIG{k.signal} to {k.receiver}", lambda k: k.moment) + "\n"
    print(f"\n{text}", end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(text)
        with (options.out / "kills.csv").open("w", newline="") as file:
            csv.writer(file).writerows([Kill._fields, *kills])
    return 0 if all(kill.equal for kill in kills) else 1


if __name__ == "__main__":
    sys.exit(main())
