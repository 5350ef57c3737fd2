"""Hidden states after each block: logit lens, and massive activations.

Shapes: L blocks, B batch, T tokens, D model width, V vocabulary.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fourfold.core.block import Stack


def hidden_states(stack: nn.Module, forward: Callable[[], object]) -> list[Tensor]:
    """Run a model, and return the output (B, T, D) of each block of one of its stacks.

    Args:
        stack: A `Stack`, such as `model.stack` or `model.decoder`.
        forward: Function without arguments that runs the model once.

    Returns:
        List of L tensors, from the first block to the last.
    """
    assert isinstance(stack, Stack)
    states: list[Tensor] = []
    with ExitStack() as hooks:
        for block in stack.blocks:
            hooks.enter_context(
                block.register_forward_hook(lambda _module, _args, output: states.append(output))
            )
        forward()
    return states


def text_stack(model: Any) -> Stack | None:
    """Return the `Stack` whose output is the input of the vocabulary head of a model.

    Returns:
        The stack; None if the model has no vocabulary head or no transformer blocks.
    """
    stack = getattr(model, "decoder", getattr(model, "stack", None))
    return stack if isinstance(stack, Stack) and hasattr(model, "head") else None


@torch.no_grad()
def logit_lens(model: Any, forward: Callable[[], object], tokens: Tensor) -> Tensor:
    """Compute the rank of given tokens in the logits of each block (nostalgebraist 2020).

    The method is known as logit lens. The logits of a block are computed from the output of the
    block by the final norm of the stack and the output head of the model. The logits of the last
    block are those of the model.

    Args:
        forward: Function without arguments that runs the model once.
        tokens: Token ids (B, T) int64 whose ranks are computed, one for each position. For an
            encoder-decoder, the positions are those of the target.

    Returns:
        Ranks (L, B, T) int64, where 0 is the most probable token.
    """
    stack = text_stack(model)
    assert stack is not None, "the model has no vocabulary head on transformer blocks"
    ranks = []
    for state in hidden_states(stack, forward):
        logits = model.logits(stack.norm(state))
        ranks.append((logits > logits.gather(-1, tokens.unsqueeze(-1))).sum(-1))
    return torch.stack(ranks)


class Activations(NamedTuple):
    """Largest activations of the hidden states of one block.

    Args:
        largest: Largest absolute value.
        median: Median of the absolute values.
        location: Indices (row, token, channel) of the largest absolute value.
        is_massive: True if `largest` is above 100 and above 1000 times the median (Sun et al.
            2024).
    """

    largest: float
    median: float
    location: tuple[int, ...]
    is_massive: bool


def massive_activations(states: list[Tensor]) -> list[Activations]:
    """Find the largest activation in the output of each block (Sun et al. 2024).

    Args:
        states: Hidden states (B, T, D) of each block, such as the result of `hidden_states`.

    Returns:
        List of one `Activations` for each block.
    """
    found = []
    for state in states:
        sizes = state.detach().float().abs()
        largest, median = float(sizes.max()), float(sizes.median())
        location = tuple(int(i) for i in torch.unravel_index(sizes.argmax(), sizes.shape))
        found.append(Activations(largest, median, location, largest > max(100.0, 1000 * median)))
    return found
