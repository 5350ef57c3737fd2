"""Decorator that raises a helpful error for the second derivative of an autograd function."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from fourfold.errors import InputError

Gradients = tuple[Tensor | None, ...]


def differentiable_once(
    name: str, alternative: str
) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Build a decorator for the `backward` method of an autograd function without double backward.

    Differentiating the result of the decorated method raises InputError.
    `torch.autograd.function.once_differentiable` does the same, but its error names neither the
    function nor an alternative.

    Args:
        name: Name of the differentiated function for the error message.
        alternative: Function or setting that supports double backward, for the error message.
    """
    message = f"has no second derivative; use {alternative} in its place"

    def decorate(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @wraps(backward)
        def run(ctx: Any, *grads: Tensor) -> Gradients:
            with torch.no_grad():
                found = backward(ctx, *grads)
            if not torch.is_grad_enabled():
                return found
            leaves = [None if x is None else x.detach().requires_grad_() for x in found]
            return _RaiseInBackward.apply(name, message, *leaves)

        return run

    return decorate


class _RaiseInBackward(torch.autograd.Function):
    """Autograd function that returns its tensors unchanged. The backward pass raises InputError."""

    @staticmethod
    def forward(ctx: Any, name: str, message: str, *x: Tensor | None) -> Gradients:
        ctx.error = InputError(message, option=name)
        return tuple(None if each is None else each.view_as(each) for each in x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Gradients:
        raise ctx.error
