"""How time and memory of a training step grow with length, vocabulary or batch."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from fourfold.bench.clock import interleave
from fourfold.bench.memory import NotMeasured, peak_memory
from fourfold.bench.peers.table import Absent, require
from fourfold.bench.rows import Row, against_ours
from fourfold.bench.shapes import GROWING, GROWTH, OURS, Settings, Shape
from fourfold.bench.steps import COMPARED, ready
from fourfold.bench.turns import taking_turns

WORK = "growth"


def measure_growth(family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    """Rows along each axis, until a way does not fit or takes too long."""
    for axis in settings.growth:
        names = [OURS]
        for name in (peer for peer in settings.peers if peer in COMPARED):
            try:
                require(name, settings)
                names.append(name)
            except Absent as why:
                yield Row(WORK, family, name, "ms a step", axis, note=str(why))
        for x in GROWTH[settings.size][axis]:
            grown = replace(shape, **GROWING[axis](x))
            going_on = []
            for row in _memory(axis, x, names, family, grown, settings):
                if row.values:
                    going_on.append(row.way)
                yield row
            names = going_on
            if not names:
                break
            yield from _time(axis, x, names, family, grown, settings)


def _memory(
    axis: str, x: int, names: list[str], family: str, shape: Shape, settings: Settings
) -> Iterator[Row]:
    """First each by itself, so that what does not fit ends no more than a process."""
    bytes_of_ours = 0
    for name in names:
        try:
            peak = peak_memory(name, family, shape, settings)
        except NotMeasured as why:
            yield Row(WORK, family, name, "MiB", axis, note=str(why), x=x)
            continue
        bytes_of_ours = peak if name == OURS else bytes_of_ours
        compared = [peak / bytes_of_ours] if bytes_of_ours else []
        yield Row(WORK, family, name, "MiB", axis, [peak / 2**20], compared, x=x)


def _time(
    axis: str, x: int, names: list[str], family: str, shape: Shape, settings: Settings
) -> Iterator[Row]:
    device = torch.device(settings.device)
    alone = replace(settings, compiled=False)
    with taking_turns() as turns:
        calls, _ = ready("train", family, shape, alone, names, turns)
        seconds = interleave(calls, settings.rounds, warm=1, device=device)
    compared = against_ours(seconds)
    for name, found in seconds.items():
        yield Row(
            WORK, family, name, "ms a step", axis, [1000 * s for s in found],
            compared.get(name, []), parameters=calls[name].parameters, x=x,
        )  # fmt: skip
