"""Steps of training and of evaluation, all ways in turns, the matrix product among them."""

from collections.abc import Iterator, Sequence

import torch

from fourfold.bench.batches import draw
from fourfold.bench.clock import interleave, matrix_product
from fourfold.bench.ours import forward_cost
from fourfold.bench.peers.table import Absent, having
from fourfold.bench.rows import Row, against_ours
from fourfold.bench.sentences import deal, real_tokens
from fourfold.bench.shapes import OURS, Settings, Shape
from fourfold.bench.turns import Turn, taking_turns
from fourfold.bench.ways import COMPILED, TYPES
from fourfold.core.errors import InputError
from fourfold.models.cost import BACKWARD

PRODUCT = "matrix product"
SENTENCES, PER_TOKEN = "sentences", "ms per 1,000 real tokens"
COMPARED = (OURS, "transformers")  # where one peer says enough
PASSES = {"train": BACKWARD, "evaluate": 1}  # forward passes that a step costs


def measure_steps(work: str, family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    """Rows of one work and family, ours first."""
    device = torch.device(settings.device)
    product, product_flops = matrix_product(TYPES[settings.precision], device)
    names = [OURS, *having(family, settings.peers)]
    with taking_turns() as turns:
        calls, missing = ready(work, family, shape, settings, names, turns)
        seconds = interleave({**calls, PRODUCT: product}, settings.rounds, device=device)
    flops = PASSES[work] * forward_cost(family, shape, draw(family, shape, torch.device("cpu")))
    rates = [product_flops / x for x in seconds.pop(PRODUCT)]
    compared = against_ours(seconds)
    for way, found in seconds.items():
        yield Row(
            work, family, way, "ms a step",
            values=[1000 * x for x in found],
            ratios=compared[way],
            shares=[flops / x / rate for x, rate in zip(found, rates, strict=True)],
            ceiling=PRODUCT,
            parameters=calls[way].parameters,
        )  # fmt: skip
    for way, why in missing.items():
        yield Row(work, family, way, "ms a step", note=why)


def ready(
    work: str,
    family: str,
    shape: Shape,
    settings: Settings,
    names: Sequence[str],
    turns: list[Turn],
) -> tuple[dict[str, Turn], dict[str, str]]:
    """By name: a turn of each way, put among `turns` too, and why others are missing."""
    calls: dict[str, Turn] = {}
    missing: dict[str, str] = {}
    for name in names:
        for compiled in (False, True)[: 1 + settings.compiled]:
            way = name + COMPILED * compiled
            try:
                turn = Turn(work, name, family, shape, settings, compiled=compiled)
            except Absent as why:
                missing[way] = str(why)
                continue
            turns.append(turn)
            calls[way] = turn
    return calls, missing


def measure_sentences(family: str, shape: Shape, settings: Settings) -> Iterator[Row]:
    """Rows of ours and transformers'; one that says why, where the data are not here."""
    try:
        batches = deal(OURS, family, shape, settings)
    except InputError as error:
        yield Row(SENTENCES, family, OURS, PER_TOKEN, note=str(error))
        return
    tokens = real_tokens(batches)
    names = [name for name in COMPARED if name == OURS or name in settings.peers]
    with taking_turns() as turns:
        calls, missing = ready(SENTENCES, family, shape, settings, names, turns)
        device = torch.device(settings.device)
        seconds = interleave(calls, settings.rounds, warm=1, device=device)
    compared = against_ours(seconds)
    for way, found in seconds.items():
        yield Row(
            SENTENCES, family, way, PER_TOKEN, values=[1e6 * x / tokens for x in found],
            ratios=compared[way], parameters=calls[way].parameters,
        )  # fmt: skip
    for way, why in missing.items():
        yield Row(SENTENCES, family, way, PER_TOKEN, note=why)
