"""Command `python scripts/benchmarks`: measures fourfold and peer libraries in one run.

All contenders get the same shapes and precision and are measured in interleaved rounds. Progress is
printed to stderr, the report to stdout. After Ctrl-C, the report contains the finished workloads.

    taskset -c 1 python scripts/benchmarks --size laptop --work train --out runs/bench
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

if not __package__:  # run as `python scripts/benchmarks`, which puts this folder on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from fourfold.cli import run_main
from fourfold.commands.infer.devices import choose_device
from fourfold.core.precision import AUTO, describe_bf16, resolve_precision
from fourfold.core.validation import check_positive, check_range
from fourfold.environment import machine
from scripts.benchmarks.decoding import measure_decoding
from scripts.benchmarks.memory import measure_memory
from scripts.benchmarks.report import markdown, summary_line, write_report
from scripts.benchmarks.scoring import measure_scoring
from scripts.benchmarks.train_steps import Measurement, measure_steps
from scripts.benchmarks.workloads import (
    DEFAULT_WORKLOADS,
    FAMILIES,
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
    "beam": measure_decoding,
    "score": measure_scoring,
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
    help_text = "sizes of the models; tiny only checks that everything runs (default: %(default)s)"
    add("--size", choices=SIZES, default="laptop", help=help_text)
    help_text = "default: all families of the size"
    add("--family", dest="families", nargs="+", choices=FAMILIES, help=help_text)
    help_text = f"workloads (default: {' '.join(DEFAULT_WORKLOADS)})"
    add("--work", dest="workloads", nargs="+", choices=WORKLOADS, help=help_text)
    help_text = "peers that are not installed are left out with a note (default: all)"
    peers = (*PEER_NAMES, "none")
    add("--peers", nargs="+", choices=peers, default=list(PEER_NAMES), help=help_text)
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
    device = choose_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    precision = options.precision
    if precision == AUTO:
        precision = "fp32" if resolve_precision(AUTO, device) == "32-true" else "bf16"
        print(f"--precision {AUTO}: {precision}, since {describe_bf16(device)}", file=sys.stderr)
    changed = {
        "families": tuple(options.families or SIZES[options.size]),
        "workloads": tuple(options.workloads or DEFAULT_WORKLOADS),
        "peers": tuple(name for name in options.peers if name in PEER_NAMES),
        "precision": precision,
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
    given = {name: value for name, value in vars(options).items() if name != "out"}
    return Settings(**given | changed)


def measure(settings: Settings) -> Iterator[Measurement]:
    """Measure all workloads with all families that the size has."""
    for workload in settings.workloads:
        for family in settings.families:
            shape = settings.shape(family)
            if family in WORKLOADS[workload] and shape is not None:
                yield from MEASURE[workload](workload, family, shape, settings)


if __name__ == "__main__":
    sys.exit(run_main(main, sys.argv[1:]))
