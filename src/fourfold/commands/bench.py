"""`fourfold bench`: our families against their peers, in one run on this machine.

Words are looked at before torch is imported, so that mistakes answer at once.
"""

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fourfold.bench import shapes
from fourfold.bench.shapes import SIZES, WORKS, Settings
from fourfold.commands.inference import OptionParser
from fourfold.core.config import check_word
from fourfold.core.errors import InputError

LEAST = {"rounds": 1, "threads": 1, "budget": 1}


def main(argv: Sequence[str]) -> int:
    """Measure what is asked for, print it, and write it where that is wanted.

    Raises:
        InputError: A word that is not known, or nothing to measure.
    """
    options = _options(argv)
    _check(options)
    out = None if options.out is None else Path(options.out)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with _ending():
        _measure(options, out)
    return 0


@contextmanager
def _ending() -> Iterator[None]:
    """Let SIGTERM end what is in it as an exception would: what was found is then written."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _options(argv: Sequence[str]) -> Namespace:
    parser = OptionParser(prog="fourfold bench", add_help=False, allow_abbrev=False)
    default = Settings()
    parser.add_argument("--size", default=default.size)
    parser.add_argument("--family", nargs="+")
    parser.add_argument("--work", nargs="+")
    parser.add_argument("--growth", nargs="+")
    parser.add_argument("--peers", nargs="+", default=list(default.peers))
    parser.add_argument("--precision", default=default.precision)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--nanogpt")
    parser.add_argument("--rounds", type=int, default=default.rounds)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dropout", type=float, default=default.dropout)
    parser.add_argument("--budget", type=float, default=default.budget)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out")
    options = parser.parse_args(list(argv))
    if options.work is None:
        options.work = ["growth"] if options.growth else list(default.works)
    options.growth = options.growth or list(shapes.GROWING)
    return options


def _check(options: Namespace) -> None:
    check_word("--size", options.size, tuple(SIZES))
    check_word("--precision", options.precision, shapes.PRECISIONS)
    known = {
        "family": shapes.FAMILIES,
        "work": tuple(WORKS),
        "growth": tuple(shapes.GROWING),
        "peers": (*shapes.PEERS, "none"),
    }
    for name, words in known.items():
        for word in getattr(options, name) or []:
            check_word(f"--{name}", word, words)
    for name, least in LEAST.items():
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise InputError(f"--{name} is {value:g}, but must be at least {least}")
    if not 0.0 <= options.dropout < 1.0:
        raise InputError(f"--dropout is {options.dropout}, but must lie in [0, 1)")
    _check_work(options)


def _check_work(options: Namespace) -> None:
    """Families default to those that the size has."""
    there = tuple(SIZES[options.size])
    options.family = options.family or list(there)
    for family in options.family:
        if family not in there:
            raise InputError(f"size {options.size} has no {family}: it has {', '.join(there)}")
    if not any(family in WORKS[work] for work in options.work for family in options.family):
        can = ", ".join(dict.fromkeys(f for work in options.work for f in WORKS[work]))
        raise InputError(f"there is nothing to measure: {', '.join(options.work)} is for {can}")


def _measure(options: Namespace, out: Path | None) -> None:
    import torch

    from fourfold.bench.machine import machine
    from fourfold.bench.peers.nanogpt import read
    from fourfold.bench.report import line, markdown, write
    from fourfold.bench.run import measure
    from fourfold.commands.devices import choose_device

    if options.nanogpt is not None:
        read(options.nanogpt)  # now, rather than in the middle
    device = choose_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    settings = Settings(
        options.size, tuple(options.family), tuple(options.work),
        tuple(name for name in options.peers if name in shapes.PEERS), options.precision,
        options.compiled, options.nanogpt, options.rounds, options.dropout, tuple(options.growth),
        options.budget, str(device), torch.get_num_threads(),
    )  # fmt: skip
    rows, about = [], machine(device)
    try:
        for row in measure(settings):
            rows.append(row)
            print(line(row), file=sys.stderr, flush=True)
    finally:  # also of a run that was broken off
        if rows:
            print(markdown(rows, about, settings), end="", flush=True)
            if out is not None:
                write(rows, about, settings, out)
                print(f"\nwrote {out / 'bench.md'}, bench.json and bench.png", flush=True)
