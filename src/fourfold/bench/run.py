"""All that was asked for, in order; each row is handed on as soon as it is found."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fourfold.bench.clock import copying, interleave
from fourfold.bench.decoding import DECODERS, THEIRS
from fourfold.bench.growth import measure_growth
from fourfold.bench.memory import NotMeasured, peak_memory
from fourfold.bench.peers.table import Absent, having, require
from fourfold.bench.rows import Row, against_ours
from fourfold.bench.shapes import OURS, WORKS, Settings, Shape
from fourfold.bench.steps import measure_sentences, measure_steps

COPY = "memory bandwidth"


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of all works and families that the size has shapes for."""
    for work in settings.works:
        for family in settings.families:
            shape = settings.shape(family)
            if family in WORKS[work] and shape is not None:
                yield from DOERS[work](work, family, shape, settings)


def _steps(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    return measure_steps(work, family, shape, settings)


def _sentences(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    return measure_sentences(family, shape, settings)


def _growth(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    return measure_growth(family, shape, settings)


def _memory(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    ours: int | None = None
    for name in [OURS, *having(family, settings.peers)]:
        try:
            if name != OURS:
                require(name, settings)
            peak = peak_memory(name, family, shape, settings)
        except (Absent, NotMeasured) as why:
            yield Row(work, family, name, "MiB", note=str(why))
            continue
        ours = peak if name == OURS else ours
        compared = [] if ours is None else [peak / ours]
        yield Row(work, family, name, "MiB", "", [peak / 2**20], compared)


def _decode(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    device, note = torch.device(settings.device), ""
    try:
        require(THEIRS, settings)
        theirs = THEIRS in settings.peers
    except Absent as why:
        theirs, note = False, str(why)
    copy, copied = copying(device)
    for job in DECODERS[work](settings, shape, device, theirs):
        alike = f"{100 * job.same_rows():.0f} % of the rows alike" if theirs else ""
        calls: dict[str, Callable[[], Any]] = {**job.ways, COPY: copy}
        seconds = interleave(calls, settings.rounds, warm=1, device=device)
        rates = [copied / x for x in seconds.pop(COPY)]
        compared = against_ours(seconds)
        for way, found in seconds.items():
            tokens = [x / job.new for x in found]
            read = [job.weight_bytes / x / r for x, r in zip(tokens, rates, strict=True)]
            yield Row(
                work, family, way, "ms a token", job.what, [1000 * x for x in tokens],
                compared[way], read if job.rows == 1 else [], COPY,
                sum(p.numel() for p in job.model.parameters()), alike if way != OURS else "",
            )  # fmt: skip
        if note:
            yield Row(work, family, THEIRS, "ms a token", job.what, note=note)


DOERS: dict[str, Callable[[str, str, Shape, Settings], Iterator[Row]]] = {
    "train": _steps,
    "evaluate": _steps,
    "sentences": _sentences,
    "memory": _memory,
    "greedy": _decode,
    "beam": _decode,
    "growth": _growth,
}
