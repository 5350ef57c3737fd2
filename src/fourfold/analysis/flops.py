"""Parameters and forward FLOPs of a model, divided into embeddings, blocks and head.

torch's `FlopCounterMode` counts the FLOPs of matrix products on the meta device, which needs no
weights. One multiply-add is two FLOPs. Norms, activations, softmax and biases do not count (as in
ViT's Table 6). A causal mask does not reduce the FLOPs of attention. A window does reduce them:
each query counts as many keys as a query in the middle of a long sequence.
"""

from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fourfold.core.attention import attention_backend
from fourfold.core.block import Stack
from fourfold.core.masks import Mask
from fourfold.layers.base_model import Layers, Model
from fourfold.layers.patch_embedding import PatchEmbedding
from fourfold.layers.token_embedding import TokenEmbedding

# FLOPs of a training step in units of the forward pass: the backward pass costs two of them, one
# for the activations and one for the weights.
TRAINING_TO_FORWARD = 3


@dataclass(frozen=True)
class CostBreakdown:
    """Number of parameters or FLOPs of a model, divided into three parts.

    Args:
        embeddings: Number in the embeddings of tokens or patches.
        blocks: Number in the transformer blocks, recurrent layers or convolutions, with their
            attention.
        head: Number in all other modules, such as output head and projections.
    """

    embeddings: int
    blocks: int
    head: int

    @property
    def total(self) -> int:
        """Sum of embeddings, blocks and head."""
        return sum(astuple(self))


def parameters(model: nn.Module) -> CostBreakdown:
    """Count the parameters of the embeddings, the blocks and the head of a model.

    A matrix that embeddings and head share counts once, in the embeddings.
    """
    counts = {"embeddings": 0, "blocks": 0, "head": 0}
    for name, parameter in model.named_parameters():
        counts[_section(getattr(model, name.split(".")[0]))] += parameter.numel()
    return CostBreakdown(**counts)


def forward_flops(
    model: Model,
    length: int | None = None,
    *,
    source: int | None = None,
    head_fraction: float = 1.0,
) -> CostBreakdown:
    """Count the FLOPs of a forward pass with a batch of one, two for each multiply-add (MAC).

    The inputs are those of `Model.example_inputs`. BERT's next-sentence head is not counted,
    because `forward` does not apply it.

    Args:
        length: Number of tokens, or of target tokens.
        source: Number of source tokens.
        head_fraction: Fraction of the positions that the head is applied to, less than 1 for the
            training of a masked LM, which predicts the masked tokens only.

    Example:
        >>> from fourfold.models import create
        >>> flops = forward_flops(create("vit_base_patch16_224", device="meta"))
        >>> f"{flops.total / 2e9:.1f} GMACs"
        '17.6 GMACs'
    """
    inputs = tuple(x.to("meta") for x in model.example_inputs(length, source))
    tensors = *model.named_parameters(), *model.named_buffers()
    on_meta = {name: tensor.detach().to("meta") for name, tensor in tensors}
    hidden: list[int] = []

    def count_hidden(stack: nn.Module, args: tuple[Any, ...]) -> None:
        hidden.append(_hidden_flops(stack, *args[:2]))

    with ExitStack() as context:
        for module in model.modules():
            if isinstance(module, Stack):
                context.enter_context(module.register_forward_pre_hook(count_hidden))
        # The naive backend, because torch does not count the products of every fused kernel.
        context.enter_context(attention_backend("naive"))
        context.enter_context(torch.no_grad())
        counter = context.enter_context(FlopCounterMode(display=False))
        functional_call(model, on_meta, inputs)
    flops = {"embeddings": 0, "blocks": 0, "head": 0}
    by_module = counter.get_flop_counts()
    for name, child in model.named_children():
        flops[_section(child)] += sum(by_module.get(f"{type(model).__name__}.{name}", {}).values())
    head = counter.get_total_flops() - flops["embeddings"] - flops["blocks"]
    blocks = flops["blocks"] - sum(hidden)
    return CostBreakdown(flops["embeddings"], blocks, round(head * head_fraction))


def _hidden_flops(stack: Any, x: Tensor, mask: Mask = Mask()) -> int:
    """Count the FLOPs of a naive stack for pairs of query and key that its windows hide."""
    length = x.shape[1]
    layers = [module for name, module in stack.named_modules() if name.rpartition(".")[2] == "attn"]
    hidden = 0
    for layer, window in zip(layers, stack.windows, strict=False):
        if window is not None:
            n_keys = mask.n_global + (window if mask.causal else 2 * window - 1)
            widths = layer.q.out_features + layer.out.in_features
            hidden += 2 * len(x) * length * max(0, length - n_keys) * widths
    return hidden


def _section(child: nn.Module | nn.Parameter) -> str:
    """Return the field of `CostBreakdown` that counts a direct part of a model."""
    if isinstance(child, TokenEmbedding | PatchEmbedding):
        return "embeddings"
    return "blocks" if isinstance(child, Stack | Layers) else "head"
