"""Operations of `fourfold.edit`: functions of a tensor and of its place in the model."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.core.edits import Place
from fourfold.edits.run import Run
from fourfold.errors import InputError


class Operation:
    """Operation of `edit`: a function of a tensor and its `Place`.

    `to_json` is the form that `load_edits` reads, or None if there is none. `slots` are the slots
    to which it applies, by default all; scores are those of attention weights.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Place], Tensor],
        to_json: dict[str, Any] | None = None,
        slots: tuple[str, ...] = (),
    ) -> None:
        self.function = function
        self.to_json = to_json
        self.slots = slots

    def __call__(self, x: Tensor, place: Place) -> Tensor:
        """Return the changed tensor."""
        return self.function(x, place)


def set(value: Tensor | float, positions: int | Sequence[int] | None = None) -> Operation:
    """Replace a tensor by a value that is broadcast to it. Its gradient is then 0."""
    at = _positions(positions)

    def function(x: Tensor, place: Place) -> Tensor:
        replaced = torch.ones_like(x, dtype=torch.bool)
        # The replaced values keep a place in the graph, so that DDP finds no unused parameters.
        if not isinstance(value, Tensor):
            return _at(x.masked_fill(replaced, value), x, at, place)
        return _at(torch.where(replaced, _like(value, x, place), x), x, at, place)

    is_zero = not isinstance(value, Tensor) and value == 0.0 and positions is None
    return Operation(function, {"operation": "zero"} if is_zero else None)


def add(value: Tensor | float, positions: int | Sequence[int] | None = None) -> Operation:
    """Add a value that is broadcast to the tensor, such as a steering vector."""
    at = _positions(positions)
    return Operation(lambda x, place: _at(x + _like(value, x, place), x, at, place))


def scale(factor: Tensor | float, positions: int | Sequence[int] | None = None) -> Operation:
    """Multiply by a factor, such as a gate that is a parameter (Michel et al. 2019)."""
    at = _positions(positions)
    is_number = not isinstance(factor, Tensor) and positions is None
    return Operation(
        lambda x, place: _at(x * _like(factor, x, place), x, at, place),
        {"operation": "scale", "factor": factor} if is_number else None,
    )


def patch(run: Run, positions: int | Sequence[int] | None = None) -> Operation:
    """Replace a tensor by the one of the same name in a run of the same length."""
    at = _positions(positions)

    def function(x: Tensor, place: Place) -> Tensor:
        return _at(_like(run[place.name], x, place, exact=True), x, at, place)

    return Operation(function)


def resample(run: Run, order: Sequence[int] | None = None) -> Operation:
    """Replace row i by row `order[i]` of a run; None moves each row by one.

    Raises InputError if a row would be replaced by itself only, because the run has one row.
    """

    def function(x: Tensor, place: Place) -> Tensor:
        other = run[place.name]
        if len(other) < 2 if order is None else max(order) >= len(other):
            needed = 2 if order is None else max(order) + 1
            raise InputError(f"must have at least {needed} rows, got {len(other)}", option="run")
        rows = other.roll(-1, 0) if order is None else other[list(order)]
        return _like(rows, x, place, exact=True)

    return Operation(function)


def mean(run: Run, positions: int | Sequence[int] | None = None) -> Operation:
    """Replace each token's vector by its mean over the real tokens of a run.

    The run should be of other data: the mean over the evaluated batch contains its own values. The
    attention weights have no mean, because their rows have different lengths.
    """
    at = _positions(positions)

    def function(x: Tensor, place: Place) -> Tensor:
        return _at(_like(run.mean(place), x, place).expand_as(x), x, at, place)

    return Operation(function, None, ("in", "out", "q", "k", "v", "head", "neuron"))


def hide(keys: int | Sequence[int], queries: int | Sequence[int] | None = None) -> Operation:
    """Forbid attention to keys before the softmax, so that the other weights grow.

    Source: attention knockout, Geva et al. 2023, section 4. A query without keys gets weights of 0.
    """
    pairs = {"keys": _positions(keys), "queries": _positions(queries)}

    def function(scores: Tensor, place: Place) -> Tensor:
        return scores.masked_fill(_pairs(scores, place, **pairs), float("-inf"))

    return Operation(function, {"operation": "hide", **pairs}, ("scores",))


def drop(keys: int | Sequence[int], queries: int | Sequence[int] | None = None) -> Operation:
    """Set attention weights of keys to 0 after the softmax; the row then sums to less than 1."""
    pairs = {"keys": _positions(keys), "queries": _positions(queries)}

    def function(weights: Tensor, place: Place) -> Tensor:
        return weights.masked_fill(_pairs(weights, place, **pairs), 0.0)

    return Operation(function, {"operation": "drop", **pairs}, ("weights",))


def dump_edits(edits: Mapping[str, Operation]) -> str:
    """Return edits as JSON, if all are `zero`, `scale` by a number, `hide` or `drop`."""
    for name, operation in edits.items():
        if getattr(operation, "to_json", None) is None:
            message = "must be zero, scale by a number, hide or drop at all positions"
            raise InputError(message, option=f"the edit of {name}")
    return json.dumps({name: operation.to_json for name, operation in edits.items()})


def load_edits(text: str) -> dict[str, Operation]:
    """Return the edits that `dump_edits` wrote."""
    makers: Any = {"zero": lambda: zero, "scale": scale, "hide": hide, "drop": drop}
    found = {}
    try:
        for name, form in json.loads(text).items():
            options = dict(form)
            found[name] = makers[options.pop("operation")](**options)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        message = f"must map names to the operations {', '.join(makers)} with their options"
        raise InputError(message, option="the edits") from error
    return found


def from_function(
    function: Callable[[Tensor], Tensor], name: str
) -> Callable[[Tensor, Place], Tensor]:
    """Return the operation of a user's function, which must not change its argument."""

    def operation(x: Tensor, place: Place) -> Tensor:
        given = x.clone() if x.is_inference() else x  # inference mode does not count changes
        version = 0 if x.is_inference() else x._version
        y = function(given)
        if x.is_inference():
            is_changed = not torch.allclose(given, x, rtol=0, atol=0, equal_nan=True)
        else:
            is_changed = x._version != version
        if is_changed:
            raise InputError("must not change its argument in place", option=f"the edit of {name}")
        return y

    return operation


def _like(value: Any, x: Tensor, place: Place, exact: bool = False) -> Tensor:
    """Convert a value to the type and device of x; with `exact`, it must have the shape of x."""
    value = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    try:
        fits = torch.broadcast_shapes(value.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits or (exact and value.shape != x.shape):
        message = f"must have the shape {tuple(x.shape)}, got {tuple(value.shape)}"
        raise InputError(message, option=f"the value for {place.name}")
    return value


def _at(new: Tensor, x: Tensor, positions: Sequence[int] | None, place: Place) -> Tensor:
    """Return the new values at the positions, and x at all others."""
    if positions is None:
        return new
    place.check_columns(of_memory=place.slot in ("k", "v") and ".cross." in place.name)
    chosen = _columns_in(positions, x.shape[place.axis], place.first, x)
    return torch.where(chosen if place.axis == -1 else chosen[:, None], new, x)


def _columns_in(wanted: Sequence[int], length: int, first: int, x: Tensor) -> Tensor:
    """Return a mask (length,) of the columns from `first` on that are wanted."""
    columns = torch.arange(first, first + length, device=x.device)
    return torch.isin(columns, torch.as_tensor(wanted, dtype=torch.long, device=x.device))


def _positions(positions: int | Sequence[int] | None) -> Any:
    """Return positions as a list; an InputError rejects negative ones."""
    if positions is None:
        return None
    found = [positions] if isinstance(positions, int) else [int(i) for i in positions]
    if min(found, default=0) < 0:
        raise InputError(f"must be at least 0, got {min(found)}", option="positions")
    return found


def _pairs(x: Tensor, place: Place, keys: list[int], queries: list[int] | None) -> Tensor:
    """Return a mask (Tq or 1, Tk) of the pairs of the given queries and keys."""
    place.check_columns(of_memory=".cross." in place.name)
    hidden = _columns_in(keys, x.shape[-1], place.first_key, x)[None]
    if queries is None:
        return hidden
    place.check_columns()
    return hidden & _columns_in(queries, x.shape[-2], place.first, x)[:, None]


zero = set(0.0)
