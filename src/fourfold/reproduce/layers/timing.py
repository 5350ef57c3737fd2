"""Timing of self-attention, recurrent and convolutional layers by length; crossover lengths.

Vaswani et al. 2017, Table 1, counts operations. This module measures the time of a forward and
backward pass of each layer, including its projections, for lengths that double. From the times, the
module computes the crossover: the length from which self-attention is slower than another layer.
Each layer is timed once per round, in random order (`interleaved_timing`).

Shapes:
    B sequences of a batch, T tokens (n in the table), D width (d), R tokens of a block (r).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention, lower_mask
from fourfold.core.masks import Mask
from fourfold.environment import provenance
from fourfold.errors import InputError
from fourfold.json_files import read_json
from fourfold.reproduce.cells import Cell, measured_cell
from fourfold.reproduce.interleaved_timing import Call, interleave
from fourfold.reproduce.measured import decoding
from fourfold.reproduce.tables import Row, Table

TIER = "measured"
BATCH = 4  # B
BLOCK = 64  # r in the table
WINDOW = 32  # tokens of the window on each side with the token itself; r is 2 * WINDOW - 1
KERNEL = 3  # k in the table
MAX_HEAD_WIDTH = 64
MIN_LENGTH = 16
MAX_LENGTH_PER_WIDTH = 16  # default maximum length, as a multiple of the width
SELF = "self_attention"

Layer = Callable[[Tensor], Tensor]
Round = Mapping[str, Mapping[str, float]]  # seconds by length in tokens (as text) and layer


def self_attention(width: int) -> Attention:
    """Return a self-attention layer over all tokens, a map from (B, T, D) to (B, T, D)."""
    return Attention(width, max(1, width // MAX_HEAD_WIDTH))


def restricted(width: int) -> Layer:
    """Return self-attention of width D within blocks, a map from (B, T, D) to (B, T, D).

    A sequence is divided into blocks of `BLOCK` tokens, so T must be a multiple of `BLOCK`. A
    shorter sequence is one block.
    """
    attend = self_attention(width)
    return lambda x: attend(x.reshape(-1, min(BLOCK, x.shape[1]), width)).reshape(x.shape)


def windowed(width: int) -> Layer:
    """Return self-attention of width D with a window, a map from (B, T, D) to (B, T, D).

    A token attends to itself and to the `WINDOW` - 1 nearest tokens on each side.
    """
    attend, mask = self_attention(width), Mask(window=WINDOW)
    return lambda x: attend(x, mask=lower_mask(mask, x.shape[1], x.shape[1], x))


def recurrent(kind: type[nn.RNN | nn.LSTM | nn.GRU], width: int) -> Layer:
    """Return an RNN, LSTM or GRU with one layer of width D, a map from (B, T, D) to (B, T, D)."""
    layer = kind(width, width, batch_first=True)
    return lambda x: layer(x)[0]


def convolutional(width: int) -> Layer:
    """Return a convolution of width D over `KERNEL` tokens, a map from (B, T, D) to (B, T, D)."""
    layer = nn.Conv1d(width, width, KERNEL, padding="same")
    return lambda x: layer(x.mT).mT


# Functions from the width D to a layer, by name of the layer.
LAYERS: dict[str, Callable[[int], Layer]] = {
    SELF: self_attention,
    "restricted": restricted,
    "windowed": windowed,
    **{x.__name__.lower(): partial(recurrent, x) for x in (nn.RNN, nn.LSTM, nn.GRU)},
    "convolutional": convolutional,
}


def measure_layers(width: int, rounds: int, longest: int | None = None) -> Sequence[Round]:
    """Time a forward and backward pass of each layer at lengths that double from MIN_LENGTH.

    The longest has MAX_LENGTH_PER_WIDTH x width tokens by default. The result has, for each round,
    the seconds by length (as text) and layer.
    """
    torch.manual_seed(0)
    layers = {name: build(width) for name, build in LAYERS.items()}
    times: list[dict[str, dict[str, float]]] = [{} for _ in range(rounds)]
    length = MIN_LENGTH
    while length <= (longest or MAX_LENGTH_PER_WIDTH * width):
        passes = {name: _pass(layer, length, width) for name, layer in layers.items()}
        seconds = interleave(passes, rounds, warm=1)
        for number, in_round in enumerate(times):
            in_round[str(length)] = {name: seconds[name][number] for name in LAYERS}
        length *= 2
    return times


def _pass(layer: Layer, length: int, width: int) -> Call:
    """Return a function that runs a layer forwards and backwards over a random batch."""
    x = torch.randn(BATCH, length, width, requires_grad=True)  # (B, T, D)
    return lambda: layer(x).sum().backward()


def crossover(rounds: Sequence[Round], layer: str) -> list[float | str]:
    """Compute the crossover: the length from which self-attention is slower than another layer.

    By the medians of the ratios over the rounds, the result is ["under N"] if self-attention is
    slower at all lengths, and ["over N"] if it is not slower at the maximum length. Otherwise it
    has the crossover in tokens of each round that has one, or else that of the medians.
    """
    # A layer whose block or window reaches all tokens is equal to self-attention.
    same = {"restricted": BLOCK, "windowed": WINDOW}.get(layer, 0)
    curves = [
        # The logarithm is positive where self-attention is slower.
        {int(n): math.log(s[SELF] / s[layer]) if int(n) > same else 0.0 for n, s in times.items()}
        for times in rounds
    ]
    if not curves:
        return []
    medians = {n: statistics.median(curve[n] for curve in curves) for n in curves[0]}
    if min(medians.values()) > 0.0:
        return [f"under {min(medians)}"]
    if medians[max(medians)] <= 0.0:
        return [f"over {max(medians)}"]
    lengths = [length for curve in curves for length in _crossing(curve)]
    return [*(lengths or _crossing(medians))]


def _crossing(curve: Mapping[int, float]) -> list[float]:
    """Return the length at which a curve last rises above 0, or an empty list.

    The curve is interpolated linearly over the logarithm of the length.
    """
    for last, after in reversed([*pairwise(sorted(curve))]):
        if curve[after] <= 0.0:
            return []
        if curve[last] <= 0.0:
            fraction = -curve[last] / (curve[after] - curve[last])
            return [float(last * (after / last) ** fraction)]
    return []


def time_rows(
    table: Table, rows: Sequence[Row], rounds: int, out: Path
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Time the layers or the decoding of some rows of a table, and compute all timed cells.

    If the setup of a row has a width, the cell is the length in tokens from which self-attention of
    this width is slower than the layer of the column. If it has a model, the cell is the time of a
    token at the position `Column.at`, divided by that at the first position. New timings replace
    the recorded timings of these rows. The second result has the timings of all rows and rounds.

    Raises:
        InputError: `rounds` is smaller than the number of recorded rounds of one of the rows.
    """
    file = out / table.name / TIER / "provenance.json"
    runs = read_json(file, optional=True).get("runs", ())
    recorded = {name: [run for run in runs if run["row"] == name] for name in table.rows}
    for row in rows:
        if rounds < (n := len(recorded[row.name])):
            message = f"must be at least {n}, the number of rounds of {row.name} in {file}"
            raise InputError(f"{message}, got {rounds}", option="--seeds")
    timed = {}
    for row in rows:
        setup = row.setup or {}
        if "model" in setup:
            measured = decoding.measure_decoding(setup, rounds)
        else:
            measured = measure_layers(setup["d"], rounds, setup.get("longest"))
        timed[row.name] = [
            {"row": row.name, "seed": seed, **provenance({}), "seconds_by_length": times}
            for seed, times in enumerate(measured)
        ]
    by_row = recorded | timed
    cells = []
    for row, name in table.cells(TIER):
        column = table.columns[name]
        layer = str(column.measured)
        times = [run["seconds_by_length"] for run in by_row[row.name]]
        if layer == "decoding":
            rounds_of_row, values = times, decoding.growth(times, int(column.at or 0))
        else:
            # Rounds that were recorded by an earlier version may lack a layer.
            rounds_of_row = [t for t in times if all(layer in seconds for seconds in t.values())]
            values = crossover(rounds_of_row, layer)
        cells.append(measured_cell(row, name, values, list(range(len(rounds_of_row)))))
    return cells, [run for runs in by_row.values() for run in runs]
