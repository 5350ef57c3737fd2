"""Computation of table cells without training: parameters, FLOPs, formulas, schedules, attention.

Each function of `EXACT` computes the cells of one column from the setup of a row, a mapping with
the inputs of the function. Most setups have a `model` (a class of `fourfold.models`) and its
`config`, and except for images a `length` (tokens of a sequence, of which source and target of an
encoder-decoder have as many each). The result is a number in base units, such as parameters and not
millions of parameters, or a formula as text. A multiply-add counts as two FLOPs.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import torch

from fourfold.analysis.attention_properties import (
    LayerProperties,
    ScoreStatistics,
    layer_properties,
    score_statistics,
)
from fourfold.analysis.flops import TRAINING_TO_FORWARD, CostBreakdown, forward_flops
from fourfold.analysis.flops import parameters as count
from fourfold.analysis.gradient_norms import initial_gradient_norms
from fourfold.core.config import TransformerConfig
from fourfold.reproduce.cells import Cell, agrees, in_units
from fourfold.reproduce.layers.complexity import LAYERS, cost_formula, growth, path, sequential
from fourfold.reproduce.layers.costs import LAYER_COSTS
from fourfold.reproduce.load_tables import merged
from fourfold.reproduce.mask_statistics import distinct_masks, shares
from fourfold.reproduce.measured.decoding import POSITIONS, build, cache_bytes
from fourfold.reproduce.recipe_cards.conventions import max_learning_rate
from fourfold.reproduce.tables import Row, Table
from fourfold.schedules import ScheduleConfig

Setup = Mapping[str, Any]
DISTANCES = (1, 5, 10, 20, 50, 100)  # between two tokens, for gradient norms


def _model(setup: Setup) -> Any:
    """Build the model of a row of a table on the meta device, without weight values."""
    with torch.device("meta"):
        return build(setup)


def parameters(setup: Setup) -> int:
    """Count the parameters, without the parts ("embeddings", "blocks", "head") in `leave_out`."""
    parts: CostBreakdown = count(_model(setup))
    return parts.total - sum(getattr(parts, part) for part in setup.get("leave_out", ()))


def forward(setup: Setup) -> int:
    """Count the FLOPs of a forward pass of a model for one image or one sequence."""
    return forward_flops(_model(setup), setup.get("length")).total


def device_flops(setup: Setup) -> float:
    """Estimate the training FLOPs as time x devices x sustained speed of one device.

    Vaswani et al. 2017, Table 2, prints this estimate. `tflops` is the speed in 10^12 FLOP/s.
    """
    return float(setup["hours"] * 3600 * setup["devices"] * setup["tflops"] * 1e12)


def training_flops(setup: Setup) -> float:
    """Compute three times the FLOPs of all forward passes of a training.

    The number of sequences or images is `samples`, or `steps` times `batch` (number per step).
    """
    samples = setup.get("samples") or setup["steps"] * setup["batch"]
    return TRAINING_TO_FORWARD * float(forward(setup)) * samples


def six_n_d(setup: Setup) -> float:
    """Estimate the training FLOPs as 6 x parameters (or `rounded`) x `tokens`."""
    return 6.0 * setup.get("rounded", parameters(setup)) * setup["tokens"]


def peak_rate(setup: Setup) -> float:
    """Compute the maximum learning rate of a training of `steps` steps and width `d_model`."""
    schedule = ScheduleConfig(**setup["schedule"])
    return max_learning_rate(schedule, float(setup["lr"]), setup["steps"], setup["d_model"])


@cache
def _gradient_norms(of: Any, setup: str) -> list[float]:
    """Return the gradient norm for each distance; `setup` is JSON text, so that it is hashable."""
    options = json.loads(setup)
    if "config" in options:
        options["config"] = TransformerConfig(**options["config"])
    return initial_gradient_norms(of, DISTANCES, **options)


def gradient_norm(of: str, distance: int, setup: Setup) -> float:
    """Compute the norm of the gradient of the last state with respect to an earlier token.

    The layers are newly initialized, with the arguments of `initial_gradient_norms` in the setup.
    The norm is the spectral norm of the Jacobian matrix with respect to `of`, "state" or "input".
    """
    # The state of a transformer is its input, so both norms are computed once.
    norms = _gradient_norms("input" if "config" in setup else of, json.dumps(setup, sort_keys=True))
    return norms[DISTANCES.index(distance)]


def score_statistic(name: str, setup: Setup) -> float:
    """Measure a field of `ScoreStatistics` with random queries and keys of a `width`."""
    width = setup["width"]
    scale = width**-0.5 if setup["scaled"] else 1.0
    return float(getattr(score_statistics(width, scale), name))


def layer_cost(cost: Callable[..., float | str], setup: Setup) -> float | str:
    """Count a cost of the layer with the name, the tokens and the width in the setup."""
    return cost(**setup)


def layer_property(name: str, setup: Setup) -> float:
    """Measure a field of `LayerProperties` of the stack of a model initialized with seed 0."""
    model = build(setup).double()
    return float(getattr(layer_properties(model.stack, model.config.d_model), name))


# Functions from the setup of a row to a number or formula, by the name that `Column.exact` holds.
EXACT: dict[str, Callable[[Setup], float | str]] = {
    "parameters": parameters,
    "forward": forward,
    "device_flops": device_flops,
    "training_flops": training_flops,
    "six_n_d": six_n_d,
    "sequences": lambda setup: float(setup["steps"] * setup["batch"]),
    "peak_rate": peak_rate,
    "cost_formula": lambda setup: cost_formula(LAYERS[setup["layer"]]),
    "sequence_formula": lambda setup: growth(sequential, LAYERS[setup["layer"]]),
    "path_formula": lambda setup: growth(path, LAYERS[setup["layer"]]),
    **{cost.__name__: partial(layer_cost, cost) for cost in LAYER_COSTS},
    "masked_share": lambda setup: shares(setup["masking"])["mask"],
    "same_share": lambda setup: shares(setup["masking"])["same"],
    "random_share": lambda setup: shares(setup["masking"])["random"],
    **{
        f"{of}_gradient_{distance}": partial(gradient_norm, of, distance)
        for of in ("state", "input")
        for distance in DISTANCES
    },
    **{f"cache_{n}": partial(cache_bytes, position=n) for n in POSITIONS},
    "distinct_masks": lambda setup: distinct_masks(setup["masking"], setup["epochs"]),
    **{f.name: partial(score_statistic, f.name) for f in fields(ScoreStatistics)},
    **{f.name: partial(layer_property, f.name) for f in fields(LayerProperties)},
}


def exact_cell(table: Table, row: Row, name: str) -> Cell:
    """Compute a cell without training, and compare the value with the printed number.

    If the two numbers differ, an explanation is taken from `table.reasons` and added to the cell.
    An explanation may include other inputs, with which the paper presumably computed its number.
    The value is then computed again with these inputs, stored as `Cell.changed`, and compared with
    the printed number.
    """
    column, printed = table.columns[name], row.printed.get(name)
    compute = EXACT[str(column.exact)]
    value = in_units(compute(row.setup or {}), column)
    cell = Cell(row.name, name, printed, [value], "not printed")
    if printed is None:
        return cell
    if agrees(value, printed, column):
        return replace(cell, verdict="agrees")
    reason = table.reason(row.name, name)
    if reason is None:
        return replace(cell, verdict="differs")
    changed = None
    if reason.changes:
        changed = value = in_units(compute(merged(row.setup, reason.changes)), column)
    holds = agrees(value, printed, column, reason.rounding)
    verdict = "unknown cause" if reason.unknown else "explained" if holds else "differs"
    return replace(cell, verdict=verdict, why=reason.why, source=reason.source, changed=changed)
