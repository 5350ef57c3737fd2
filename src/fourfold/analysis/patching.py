"""Tensors that carry the difference of two examples: activation patching and attribution patching.

Sources: Heimersheim and Nanda 2024 (both directions), Kramár et al. 2024 (attribution patching).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fourfold.edits import Run, edit, patch, record
from fourfold.errors import InputError

ExampleT = TypeVar("ExampleT")


class PatchEffect(NamedTuple):
    """Effect of one tensor on a metric, as a share of the difference of two examples.

    Args:
        name: Name of the tensor.
        position: Column of the token, or None for all tokens.
        denoising: Share that the tensor of the clean example restores in the corrupt one. A tensor
            with the share 1 suffices for the difference.
        noising: Share that the tensor of the corrupt example removes in the clean one. The
            difference needs a tensor with the share 1.
    """

    name: str
    position: int | None
    denoising: float
    noising: float


@torch.no_grad()
def patching(
    model: nn.Module,
    clean: ExampleT,
    corrupt: ExampleT,
    metric: Callable[[ExampleT], Tensor],
    names: Sequence[str],
    *,
    by_position: bool = False,
) -> list[PatchEffect]:
    """Exchange tensors between two runs, one at a time (activation patching).

    Args:
        clean, corrupt: Two examples of any kind, with the same numbers of tokens.
        metric: Function that runs the model once on an example, and returns a scalar, such as the
            logit of the right answer minus that of the wrong one.
        names: Names of tensors, in which * stands for any text.
        by_position: Exchange each token by itself, instead of the whole tensor.

    Raises:
        InputError: The examples have the same metric, or different numbers of tokens.
    """
    runs, values = [], []
    for example in (clean, corrupt):
        with record(model, *names) as run:
            values.append(float(metric(example)))
        runs.append(run)
    difference = _difference(values, runs)
    found = []
    for name, position in _places(runs[0], by_position):
        changes = []
        for example, run, value in ((corrupt, runs[0], values[1]), (clean, runs[1], values[0])):
            with edit(model, {name: patch(run, position)}):
                changes.append(float(metric(example)) - value)
        found.append(PatchEffect(name, position, changes[0] / difference, -changes[1] / difference))
    return found


def attribution(
    model: nn.Module,
    clean: ExampleT,
    corrupt: ExampleT,
    metric: Callable[[ExampleT], Tensor],
    names: Sequence[str],
    *,
    by_position: bool = False,
) -> list[PatchEffect]:
    """Approximate `patching` by gradients: two forward and two backward passes for all tensors.

    An effect is the product of the difference of the tensors and the gradient of the metric. It
    misses heads whose softmax is saturated, so patch the best candidates exactly. The arguments are
    those of `patching`.
    """
    runs, values, gradients = [], [], []
    for example in (clean, corrupt):
        with torch.enable_grad(), record(model, *names, grad=True) as run:
            value = metric(example)
        found = torch.autograd.grad(value, list(run.values()), materialize_grads=True)
        gradients.append(dict(zip(run, found, strict=True)))
        values.append(float(value.detach()))
        runs.append(run)
    difference = _difference(values, runs)
    effects = []
    for name, position in _places(runs[0], by_position):
        change = (runs[0][name] - runs[1][name]).detach() / difference
        products = [change * gradient[name] for gradient in gradients]
        if position is not None:
            products = [x.select(_token_axis(x), position) for x in products]
        noising, denoising = (float(x.sum()) for x in products)
        effects.append(PatchEffect(name, position, denoising, noising))
    return effects


def _difference(values: Sequence[float], runs: Sequence[Run]) -> float:
    """Return the difference of the metrics of two runs, after a check of the runs."""
    shapes = [{name: x.shape for name, x in run.items()} for run in runs]
    if shapes[0] != shapes[1]:
        raise InputError("must have the numbers of tokens of clean", option="corrupt")
    if values[0] == values[1]:
        raise InputError(f"must not have the metric of clean, {values[0]}", option="corrupt")
    return values[0] - values[1]


def _token_axis(x: Tensor) -> int:
    return -1 if x.ndim == 2 else -2  # a neuron has (B, T)


def _places(run: Run, by_position: bool) -> Iterator[tuple[str, int | None]]:
    for name, x in run.items():
        columns = range(x.shape[_token_axis(x)]) if by_position else [None]
        yield from ((name, column) for column in columns)
