"""A way to do the work: a model and its loss, whoever built them; and what a step of it is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.bench.clock import Call

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
COMPILED = " compiled"  # after the name of a way


@dataclass(frozen=True)
class Way:
    """A model with the loss that its users take.

    Args:
        module: The model.
        loss: Of the module (or of what torch.compile made of it) and a batch: a scalar.
        compile: The module, compiled as its users do.
    """

    module: nn.Module
    loss: Callable[[Any, Any], Tensor]
    compile: Callable[[nn.Module], Any] = torch.compile

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)


def mixed(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """What forward pass and loss are computed in."""
    dtype = TYPES[precision]
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def training(
    way: Way,
    batches: Sequence[Any],
    precision: str,
    device: torch.device,
    *,
    compiled: bool = False,
) -> Call:
    """A whole step of each batch: forward, loss, backward, a fused AdamW, gradients to None."""
    module: Any = way.module.to(device).train()
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, fused=True)
    module = way.compile(module) if compiled else module

    def steps() -> None:
        for batch in batches:
            with mixed(precision, device):
                loss = way.loss(module, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return steps


def evaluation(
    way: Way,
    batches: Sequence[Any],
    precision: str,
    device: torch.device,
    *,
    compiled: bool = False,
) -> Call:
    """The loss of each batch without gradients."""
    module: Any = way.module.to(device)
    module = way.compile(module) if compiled else module

    def steps() -> None:
        way.module.eval()
        with torch.no_grad(), mixed(precision, device):
            for batch in batches:
                way.loss(module, batch)

    return steps
