"""Attention maps of each layer in a forward pass: mean over heads, first row of the batch.

Shapes: T queries, S keys.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.models.recurrent.attention import RecurrentAttention


@torch.no_grad()
def attention_maps(
    model: nn.Module, module_name: Literal["attn", "cross_attn"], forward: Callable[[], object]
) -> list[Tensor]:
    """Record the attention weights of each layer, averaged over heads, for the first sample.

    Args:
        model: A model of any family. It is not changed.
        module_name: attn for self-attention, cross_attn for the attention of a decoder to the
            output of the encoder.
        forward: A function that runs the model once on a batch.

    Returns:
        A matrix (T, S) in fp32 on the CPU for each layer, in the order in which the layers run. For
        an encoder-decoder, attn gives the layers of the encoder and then those of the decoder.

    Example:
        >>> from fourfold.models import create
        >>> model = create("gpt2", n_layers=2, vocab_size=100).eval()
        >>> maps = attention_maps(model, "attn", lambda: model(torch.tensor([[1, 2, 3]])))
        >>> [tuple(weights.shape) for weights in maps]
        [(3, 3), (3, 3)]
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, Attention)
        weights = module.weights(*args, mask=kwargs["mask"], bias=kwargs.get("bias"))
        maps.append(weights[0].mean(0).float().cpu())

    recorded = []  # calls of the attention of recurrent decoders, one or several for a target
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name.rpartition(".")[2] != module_name:
                continue
            if isinstance(module, RecurrentAttention):
                recorded.append(hooks.enter_context(module.recording()))
            else:
                hooks.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        forward()
    rows = [torch.cat([weights[0] for _, weights in calls]).float().cpu() for calls in recorded]
    return maps + rows
