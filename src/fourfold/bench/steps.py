"""Steps of training and of evaluation, all ways in turns, the matrix product among them."""

from collections.abc import Iterator
from typing import Any

import torch

from fourfold.bench.batches import draw
from fourfold.bench.build import build
from fourfold.bench.clock import Call, interleave, matrix_product
from fourfold.bench.ours import BACKWARD, forward_cost
from fourfold.bench.peers.table import Absent, having
from fourfold.bench.rows import Row, against_ours
from fourfold.bench.shapes import OURS, Settings, Shape
from fourfold.bench.ways import COMPILED, TYPES, evaluation, training

PRODUCT = "matrix product"
# Work: what makes a step, and how many forward passes it costs.
STEPS = {"train": (training, BACKWARD), "evaluate": (evaluation, 1)}


def measure_steps(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    """Rows of one work and family, ours first."""
    device = torch.device(settings.device)
    batch = draw(family, shape, device)
    calls, sizes, missing = ready(work, family, shape, settings, batch)
    product, product_flops = matrix_product(TYPES[settings.precision], device)
    seconds = interleave({**calls, PRODUCT: product}, settings.rounds, device=device)
    flops = STEPS[work][1] * forward_cost(family, shape, batch)
    rates = [product_flops / x for x in seconds.pop(PRODUCT)]
    compared = against_ours(seconds)
    for way, found in seconds.items():
        yield Row(
            work, family, way, "ms a step",
            values=[1000 * x for x in found],
            ratios=compared[way],
            shares=[flops / x / rate for x, rate in zip(found, rates, strict=True)],
            ceiling=PRODUCT,
            parameters=sizes[way],
        )  # fmt: skip
    for way, why in missing.items():
        yield Row(work, family, way, "ms a step", note=why)


def ready(
    work: str, family: str, shape: Shape, settings: Settings, batch: Any
) -> tuple[dict[str, Call], dict[str, int], dict[str, str]]:
    """By name: a step of each way that has run once, its parameters, and why others are missing."""
    device = torch.device(settings.device)
    calls: dict[str, Call] = {}
    sizes: dict[str, int] = {}
    missing: dict[str, str] = {}
    for name in [OURS, *having(family, settings.peers)]:
        for compiled in (False, True)[: 1 + settings.compiled]:
            way = name + COMPILED * compiled
            torch.manual_seed(0)
            try:
                built = build(name, family, shape, settings)
                make = STEPS[work][0]
                step = make(built, batch, settings.precision, device, compiled=compiled)
                run_once(step, name)
            except Absent as why:
                missing[name] = str(why)
                break
            calls[way], sizes[way] = step, built.parameters
    return calls, sizes, missing


def run_once(step: Call, name: str) -> None:
    """See that a step works, of peers at least.

    Raises:
        Absent: What a peer complains of.
    """
    try:
        step()
    except Exception as error:  # of a peer: whatever its own code raises
        if name == OURS:
            raise
        first = (str(error).strip().splitlines() or [""])[0][:100]
        raise Absent(f"failed: {type(error).__name__}: {first}") from error
