"""`make demo`: all four families trained and tested on data that need no download, in minutes.

Each run is what the command line does, `fourfold fit` and then `fourfold test` with a file of
configs/quickstart/. Models this small gain nothing from a second core, so each core has another
one to train. At the end stand a table, with what simple baselines reach on the same test split, and
two pictures.

    python scripts/demo.py            # runs/demo/: table.md, curves.png, attention.png, a run each
    python scripts/demo.py --quick    # a step or two of each: does everything work?
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from demo_runs import TASKS, clock, cores, lanes, run_lane, states

EVERY = 5  # seconds between two lines of progress
# One thread a process; nothing that asks for a network or an account.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only a step or two of each")
    parser.add_argument("--run_dir", type=Path, default=Path("runs/demo"), help="where all goes")
    parser.add_argument("--lane", nargs="+", help=argparse.SUPPRESS)  # a child of the demo
    args = parser.parse_args()
    if args.lane:
        return run_lane(args.lane, args.run_dir, args.quick)
    begun = time.monotonic()
    os.environ.update(ENVIRONMENT)
    prepare(args.run_dir)
    if args.quick:
        quick(args.run_dir)
    else:
        full(args.run_dir)
    print(f"all of it took {clock(time.monotonic() - begun)}")
    return 0


def prepare(folder: Path) -> None:
    """Make room for the runs: a run that finds an older one would continue it."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        shutil.rmtree(folder / task, ignore_errors=True)


def quick(folder: Path) -> None:
    """Everything in this process, so that the libraries are loaded only once."""
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        code = run_lane(list(TASKS), folder, quick=True)
    if code:
        fail(log)
    import demo_baselines
    import demo_report

    demo_report.report(folder, demo_baselines.measure(quick=True), quick=True)


def full(folder: Path) -> None:
    """A process for each core, and the baselines beside them."""
    n = min(len(TASKS), cores())
    print(f"Training four small transformers, {n} at a time; all goes to {folder}/", flush=True)
    children = {}
    for number, lane in enumerate(lanes(n), 1):
        log = folder / f"log{number}.txt"
        command = [sys.executable, "-u", __file__, "--run_dir", str(folder), "--lane", *lane]
        with log.open("wb") as file:
            children[log] = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        with ThreadPoolExecutor(1) as pool:
            baselines = pool.submit(measure_baselines)
            watch(children, folder)
        import demo_report

        demo_report.report(folder, baselines.result())
    finally:
        for child in children.values():
            child.terminate()


def measure_baselines() -> dict[str, dict[str, float]]:
    import demo_baselines

    return demo_baselines.measure()


def watch(children: dict[Path, subprocess.Popen[bytes]], folder: Path) -> None:
    """Print a line every few seconds until all children have ended; stop if one has failed."""
    begun = shown = time.monotonic()
    while any(child.poll() is None for child in children.values()):
        time.sleep(0.2)
        for log, child in children.items():
            if child.poll():
                fail(log)
        if time.monotonic() - shown >= EVERY:
            shown = time.monotonic()
            print(f"{clock(shown - begun):>5}  {'  |  '.join(states(folder))}", flush=True)


def fail(log: Path) -> None:
    """End with the last lines of a log."""
    print(*log.read_text(encoding="utf-8", errors="replace").split("\n")[-15:], sep="\n")
    sys.exit(f"demo: a run failed; all that it said is in {log}")


if __name__ == "__main__":
    sys.exit(main())
