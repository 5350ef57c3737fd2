"""Command `python scripts/benchmarks`: measures fourfold and peer libraries in one run.

All contenders get the same shapes and precision and are measured in interleaved rounds. Progress is
printed to stderr, the report to stdout. After SIGINT (Ctrl-C) or SIGTERM, the report contains the
finished rounds.

    taskset -c 1 python scripts/benchmarks --size laptop --work train --out runs/bench
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if not __package__:  # run as `python scripts/benchmarks`, which puts this folder on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from fourfold.cli import run_main
from fourfold.commands.infer.devices import choose_device
from fourfold.core.precision import AUTO, describe_bf16, resolve_precision
from fourfold.core.validation import check_positive, check_range
from fourfold.environment import machine
from fourfold.errors import InputError
from scripts.benchmarks.decoding import measure_decoding
from scripts.benchmarks.memory import measure_growth, measure_memory
from scripts.benchmarks.peers.nanogpt import import_file
from scripts.benchmarks.report import markdown, summary_line, write_report
from scripts.benchmarks.train_steps import Measurement, measure_steps
from scripts.benchmarks.workloads import (
    DEFAULT_WORKLOADS,
    FAMILIES,
    GROWTH_AXES,
    PEER_NAMES,
    PRECISIONS,
    SIZES,
    WORKLOADS,
    Settings,
    Shape,
)

MEASURE: dict[str, Callable[[str, str, Shape, Settings], Iterator[Measurement]]] = {
    "train": measure_steps,
    "evaluate": measure_steps,
    "memory": measure_memory,
    "greedy": measure_decoding,
    "prefill": measure_decoding,
    "beam": measure_decoding,
    "growth": measure_growth,
}


def make_parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python scripts/benchmarks",
        description="Measure fourfold and peer libraries on this machine. All contenders have the"
        " same shapes and precision and are measured in interleaved rounds.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--size",
        choices=SIZES,
        default="laptop",
        help="sizes of the models; tiny only checks that everything runs (default: %(default)s)",
    )
    add("--family", nargs="+", choices=FAMILIES, help="default: all families of the size")
    add(
        "--work",
        nargs="+",
        choices=WORKLOADS,
        help="workloads; growth needs --growth or measures every axis"
        f" (default: {' '.join(DEFAULT_WORKLOADS)})",
    )
    add(
        "--growth",
        nargs="+",
        choices=GROWTH_AXES,
        help="axes along which a training step grows until it exceeds memory or --time_limit",
    )
    add(
        "--peers",
        nargs="+",
        choices=(*PEER_NAMES, "none"),
        default=list(PEER_NAMES),
        help="peers that are not installed are left out with a note (default: all)",
    )
    add("--nanogpt", metavar="FILE", help="path of nanoGPT's model.py, which is not a package")
    add(
        "--precision",
        choices=(AUTO, *PRECISIONS),
        default=AUTO,
        help="bf16 is autocast in training, and the data type of weights in decoding; auto is bf16"
        " if the device is fast at it, otherwise fp32 (default: %(default)s)",
    )
    add("--compile", action="store_true", help="also measure each contender with torch.compile")
    add("--rounds", type=int, default=7, metavar="N", help="measurements (default: %(default)s)")
    add("--dropout", type=float, default=0.0, metavar="P", help="rate (default: %(default)s)")
    add(
        "--time_limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="limit of one measurement of memory (default: %(default)s)",
    )
    add("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help="directory for bench.md and bench.json")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, print the report, and write it if a directory is given."""
    options = make_parser().parse_args(argv)
    settings = make_settings(options)
    out: Path | None = options.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    description = machine(torch.device(settings.device))
    measurements: list[Measurement] = []
    with _exit_on_sigterm():
        try:
            for measurement in measure(settings):
                measurements.append(measurement)
                print(summary_line(measurement), file=sys.stderr, flush=True)
        finally:  # an interrupted run reports what it has measured
            if measurements:
                print(markdown(measurements, description, settings), end="", flush=True)
                if out is not None:
                    written = write_report(measurements, description, settings, out)
                    print("\nwrote", *written, flush=True)
    return 0


def make_settings(options: argparse.Namespace) -> Settings:
    """Check the options and create the settings, or raise InputError."""
    check_positive("--rounds", options.rounds)
    check_positive("--threads", options.threads)
    check_range("--dropout", options.dropout, minimum=0.0, below=1.0)
    if not options.time_limit > 0:
        raise InputError(f"must be positive, got {options.time_limit:g}", option="--time_limit")
    available = tuple(SIZES[options.size])
    families = tuple(options.family or available)
    for family in families:
        if family not in available:
            raise InputError(
                f"must be one of {', '.join(available)} for --size {options.size}, got {family}",
                option="--family",
            )
    default = ("growth",) if options.growth else DEFAULT_WORKLOADS
    workloads = tuple(options.work or default)
    if not any(family in WORKLOADS[workload] for workload in workloads for family in families):
        supported = ", ".join(dict.fromkeys(f for w in workloads for f in WORKLOADS[w]))
        raise InputError(
            f"must include one of {supported} for --work {' '.join(workloads)}", option="--family"
        )
    if options.nanogpt is not None:
        import_file(options.nanogpt)  # reports a wrong file before the first measurement
    device = choose_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    precision = options.precision
    if precision == AUTO:
        precision = "fp32" if resolve_precision(AUTO, device) == "32-true" else "bf16"
        print(f"--precision {AUTO}: {precision}, since {describe_bf16(device)}", file=sys.stderr)
    return Settings(
        size=options.size,
        families=families,
        workloads=workloads,
        peers=tuple(name for name in options.peers if name in PEER_NAMES),
        precision=precision,
        compile=options.compile,
        nanogpt=options.nanogpt,
        rounds=options.rounds,
        dropout=options.dropout,
        growth_axes=tuple(options.growth or GROWTH_AXES),
        time_limit=options.time_limit,
        device=str(device),
        threads=torch.get_num_threads(),
    )


def measure(settings: Settings) -> Iterator[Measurement]:
    """Measure all workloads with all families that the size has."""
    for workload in settings.workloads:
        for family in settings.families:
            shape = settings.shape(family)
            if family in WORKLOADS[workload] and shape is not None:
                yield from MEASURE[workload](workload, family, shape, settings)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks are executed."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    code_ = run_main(main, sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code_)  # torch's thousands of modules need seconds to be freed on a busy machine
