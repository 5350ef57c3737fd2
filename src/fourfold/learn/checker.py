"""Check of a solution: it is called, its results are compared, and a typical mistake is named."""

import traceback
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.learn.exercises import EXERCISES

# Batch, heads, queries, keys, widths of the heads, the values and the model.
Sizes = namedtuple("Sizes", "b h tq tk dh dv d")
SIZES = (Sizes(1, 2, 2, 3, 2, 1, 4), *[Sizes(2, 3, 4, 5, 6, 7, 8)] * 3)


class WrongSolution(AssertionError):
    """Error of a solution that is wrong or missing. The message names the mistake."""


def check(name: str, solution: Callable[..., Any]) -> None:
    """Check the solution of an exercise of the course, and print one line if it is right.

    The solution is called with random inputs in fp64, the smallest ones first. A wrong one raises
    a WrongSolution. Its message names the mistake if the results are those of a typical mistake.
    Otherwise it states a property that does not hold, with the smallest counterexample.

    Args:
        name: Exercise, such as "heads"; `fourfold learn` lists them.
    """
    if name not in EXERCISES:
        raise InputError(f"must be one of {', '.join(EXERCISES)}, got {name!r}", option="name")
    calls, error = _Calls(solution), None
    made: dict[str, bool] = {}  # mistakes that all values so far agree with
    try:
        for seed, sizes in enumerate(SIZES):
            draw = partial(_draw, torch.Generator().manual_seed(seed))
            for claim in (_Claim(*c) for c in EXERCISES[name](calls, draw, sizes)):
                if claim.differences(claim.expected).any():
                    error = error or claim.error(calls.shown)
                    for text, wrong in dict(claim.mistakes).items():
                        made[text] = made.get(text, True) and not claim.differences(wrong).any()
    except WrongSolution as failure:
        error = error or failure
    if error:
        named = next((text for text, is_made in made.items() if is_made), error)
        raise WrongSolution(f"{name}: {named}") from error.__cause__
    print(f"{name}: right")


class _Claim(NamedTuple):
    """Property of a solution, with the values that typical mistakes have in place of this one."""

    text: str
    value: Tensor
    expected: Any
    mistakes: Any = ()  # wrong values by message
    tolerance: float = 1e-5  # a solution may compute in fp32

    def differences(self, other: Any) -> Tensor:
        value, other = self.value.detach().double(), torch.as_tensor(other).double()
        return ~torch.isclose(value, other.expand_as(value), self.tolerance, self.tolerance, True)

    def error(self, call: str) -> WrongSolution:
        """Return an error with the first number that differs."""
        index = tuple(self.differences(self.expected).nonzero()[0].tolist())
        expected = torch.as_tensor(self.expected).expand_as(self.value)[index]
        numbers = f"expected {expected:.6g}, got {self.value[index]:.6g} at {list(index)}"
        return WrongSolution(f"{self.text} For {call}: {numbers}".removesuffix(" at []"))


class _Calls:
    """Solution whose arguments are protected, and whose results are tested for kind and shape."""

    def __init__(self, solution: Callable) -> None:
        self.solution, self.shown = solution, ""

    def __call__(self, args: tuple, *shapes: tuple, dtype: Any = "float") -> Any:
        self.shown = f"{getattr(self.solution, '__name__', 'f')}({', '.join(map(_shown, args))})"
        copies = [x.clone() if isinstance(x, Tensor) else x for x in args]
        try:
            result = self.solution(*copies)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not error.args:
                raise WrongSolution("not solved") from None
            lines = [f"in line {x.lineno}" for x in traceback.extract_tb(error.__traceback__)[1:2]]
            text = " ".join([self.shown, "raises", type(error).__name__, *lines])
            raise WrongSolution(f"{text}: {error}") from error
        if result is None:
            raise WrongSolution(f"not solved: {self.shown} returns None")
        found = ", ".join(map(_kind, result if isinstance(result, tuple) else (result,)))
        if found != (expected := ", ".join(f"{dtype} {tuple(shape)}" for shape in shapes)):
            raise WrongSolution(f"{self.shown} returns {found}; expected {expected}")
        if any(isinstance(x, Tensor) and not x.equal(y) for x, y in zip(args, copies, strict=True)):
            raise WrongSolution(f"{self.shown} changes an argument in place")
        return result


def _draw(noise: torch.Generator, *shape: int) -> Tensor:
    """Return normal random numbers with one decimal, which are short in messages."""
    return torch.randn(shape, generator=noise, dtype=torch.float64).mul(10).round() / 10


def _kind(x: object) -> str:
    """Return type and shape of a result, or the type of anything but a tensor."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    return f"{'float' if x.is_floating_point() else x.dtype} {tuple(x.shape)}"


def _shown(x: object) -> str:
    """Return an argument in a short form."""
    if isinstance(x, Tensor):
        return str(x.tolist()) if x.numel() < 20 else f"tensor of shape {tuple(x.shape)}"
    return getattr(x, "__name__", repr(x))
