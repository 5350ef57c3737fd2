"""Where a model looks: the attention weights of each layer, read off while it runs.

Shapes: T queries, S keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention


@torch.no_grad()
def attention_maps(model: nn.Module, kind: str, forward: Callable[[], object]) -> list[Tensor]:
    """Weights (T, S) of each layer for the first row of a batch, the mean of the heads, in fp32.

    Args:
        model: Any of the families; it is left as it was.
        kind: attn, or cross_attn for what a decoder sees of its memory.
        forward: Runs the model once on the batch.
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, Attention)
        weights = module.weights(*args, mask=kwargs["mask"], bias=kwargs.get("bias"))
        maps.append(weights[0].mean(0).float().cpu())

    hooks = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == kind
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return maps
