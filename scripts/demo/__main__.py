"""Demo (`make demo`): trains and tests all four families in minutes, without downloads.

Each run consists of the commands `fourfold fit` and `fourfold test` with a config of
configs/quickstart/. Such small models do not profit from a second core, so each core trains another
model. The demo ends with a table that includes simple baselines, the loss curves, and one page that
shows the attention of all four models.

    python scripts/demo            # runs/demo/: table, figure and run directories
    python scripts/demo --quick    # one or two steps of each run, as a functional test
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

PROGRESS_SECONDS = 5  # between two lines of progress
# One thread per process, and no network access.
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
    parser.add_argument("--quick", action="store_true", help="train one or two steps of each model")
    parser.add_argument(
        "--run_dir", type=Path, default=Path("runs/demo"), help="directory for all results"
    )
    parser.add_argument("--lane", nargs="+", help=argparse.SUPPRESS)  # internal: run these tasks
    args = parser.parse_args()
    if args.lane:
        return run_lane(args.lane, args.run_dir, args.quick)
    begun = time.monotonic()
    os.environ.update(ENVIRONMENT)
    args.run_dir.mkdir(parents=True, exist_ok=True)
    for task in TASKS:  # older runs would be resumed
        shutil.rmtree(args.run_dir / task, ignore_errors=True)
    if args.quick:
        quick(args.run_dir)
    else:
        full(args.run_dir)
    attention_page(args.run_dir)
    print(f"total time {clock(time.monotonic() - begun)}")
    print("\nNext, try:", *next_commands(args.run_dir), sep="\n  ")
    return 0


def next_commands(folder: Path) -> list[str]:
    """Return shell commands that use the trained models."""
    program = Path(sys.executable).parent / "fourfold"
    fourfold = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
    return [
        f"echo 'May 12, 2024' | {fourfold} translate --checkpoint {folder}/translation",
        f"echo 'The value of' | {fourfold} generate --checkpoint {folder}/causal_lm",
        f"{fourfold} test --run_dir {folder}/images",
    ]


def attention_page(folder: Path) -> None:
    """Write one page that shows the attention of all four models, and print its path."""
    from fourfold.cli import main as fourfold

    options = ["--rows", "2", "--overwrite", "--out", str(folder / "look.html")]
    if fourfold(["look", *(str(folder / task) for task in TASKS), *options]):
        sys.exit("demo: the page of attention maps was not written")


def quick(folder: Path) -> None:
    """Run everything in this process, so that libraries are loaded once."""
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        code = run_lane(list(TASKS), folder, quick=True)
    if code:
        fail(log)
    import demo_baselines
    import demo_report

    demo_report.report(folder, demo_baselines.measure(quick=True))


def full(folder: Path) -> None:
    """Run one process per core, and the baselines in this process."""
    n = min(len(TASKS), cores())
    print(
        f"Training four small transformers, {n} at a time; results are written to {folder}/",
        flush=True,
    )
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
    """Print progress until all children have ended; exit if one has failed."""
    begun = shown = time.monotonic()
    while any(child.poll() is None for child in children.values()):
        time.sleep(0.2)
        for log, child in children.items():
            if child.poll():
                fail(log)
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{clock(shown - begun):>5}  {'  |  '.join(states(folder))}", flush=True)


def fail(log: Path) -> None:
    """Print the last lines of a log and exit."""
    print(*log.read_text(encoding="utf-8", errors="replace").split("\n")[-15:], sep="\n")
    sys.exit(f"demo: a run failed; its complete log is {log}")


if __name__ == "__main__":
    sys.exit(main())
