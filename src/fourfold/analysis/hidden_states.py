"""Hidden states after each block, and the logit lens.

Shapes: L blocks, B batch, T tokens, D model width, V vocabulary.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from fourfold.core.block import Stack


def hidden_states(stack: Stack, forward: Callable[[], object]) -> list[Tensor]:
    """Run a model by `forward`, and return the output (B, T, D) of each block of one stack."""
    states: list[Tensor] = []
    with ExitStack() as hooks:
        for block in stack.blocks:
            hook = block.register_forward_hook(lambda _block, _args, y: states.append(y))
            hooks.enter_context(hook)
        forward()
    return states


def text_stack(model: Any) -> Stack | None:
    """Return the `Stack` before the vocabulary head of a model; None without such a pair."""
    stack = getattr(model, "decoder", getattr(model, "stack", None))
    return stack if isinstance(stack, Stack) and hasattr(model, "head") else None


@torch.no_grad()
def logit_lens(model: Any, forward: Callable[[], object], tokens: Tensor) -> Tensor:
    """Compute the ranks (L, B, T) of tokens in the logits of each block (nostalgebraist 2020).

    The logits of a block are computed from its output by the final norm of the stack and the head
    of the model. Rank 0 is the most probable token.

    Args:
        model: A causal LM, masked LM or encoder-decoder with transformer blocks.
        forward: Function without arguments that runs the model once.
        tokens: Token ids (B, T) int64 whose ranks are computed, one for each (target) position.
    """
    stack = text_stack(model)
    assert stack is not None, "the model has no vocabulary head on transformer blocks"
    ranks = []
    for state in hidden_states(stack, forward):
        logits = model.logits(stack.norm(state))
        ranks.append((logits > logits.gather(-1, tokens.unsqueeze(-1))).sum(-1))
    return torch.stack(ranks)
