"""Direct logit attribution: the terms of a logit, by head, neuron layer and bias.

Shapes: B batch, T tokens, H heads, D model width, V vocabulary, K classes.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.analysis.interventions import heads
from fourfold.edits import edit, record, zero
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.layers.heads import ClassHead, VocabularyHead


def logit_attribution(
    model: Any, forward: Callable[[], Tensor], target: Tensor, other: Tensor | None = None
) -> dict[str, Tensor]:
    """Split a logit into the direct contributions of embedding, heads, neurons and biases.

    The final norm divides the residual stream of a token by a number, which is a constant here. The
    terms then sum to the logit. A direct contribution does not contain what later layers make of
    it. If a head is removed, the norm and later layers often replace a part of its contribution.

    Args:
        model: A model in eval mode whose head is linear: a causal LM, encoder-decoder or ViT.
        forward: Function that runs the model once and returns the logits (B, T, V) or (B, K).
        target: Tokens (B, T), or classes (B,), whose logits are split.
        other: Tokens or classes whose logits are subtracted. None subtracts nothing.

    Returns:
        Contributions of the shape of `target` by name. "3.ff.neuron" is the sum over the neurons of
        block 3, "3.self.bias" what its self-attention adds beside its heads, and "bias" that of the
        norm and the head.

    Raises:
        InputError: The blocks are post-norm, so that the logit is no sum of their outputs, or the
            head is not linear.
    """
    start, n_blocks = _linear_readout(model)
    tensors = [name for name in edit_targets(model) if name.startswith(start)]
    inputs = [name for name in tensors if re.search(r"\.(self|cross|ff)\.in$", name)]
    kept = [x for x in tensors if x.endswith((".in", ".out", ".neuron")) and x not in inputs]
    kept += [name for name in heads(model) if name.startswith(start)]
    with ExitStack() as contexts:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                contexts.enter_context(module.register_forward_hook(_with_constant_scale))
        with torch.no_grad(), edit(model, {f"{start}{n_blocks - 1}.out": zero}):
            terms = {"bias": _chosen(forward(), target, other)}
        contexts.enter_context(torch.enable_grad())
        contexts.enter_context(edit(model, dict.fromkeys(inputs, Tensor.detach)))
        run = contexts.enter_context(record(model, *kept, grad=True))
        logit = _chosen(forward(), target, other)
        gradients = torch.autograd.grad(logit.sum(), list(run.values()), materialize_grads=True)
    found = {}
    for (name, x), gradient in zip(run.items(), gradients, strict=True):
        by_token = (x.detach() * gradient).sum(-1)  # (B, T)
        found[name] = by_token if target.ndim == 2 else by_token.sum(-1)
    # The input of a block is the output of the one before, to which some ViTs add positions.
    terms["embedding"] = found[f"{start}0.in"] + sum(
        found[f"{start}{i}.in"] - found[f"{start}{i - 1}.out"] for i in range(1, n_blocks)
    )
    for name in inputs:
        layer = name.removesuffix("in")
        parts = {x: value for x, value in found.items() if x.startswith(layer) and x[-3:] != "out"}
        terms |= parts
        terms[f"{layer}bias"] = found[f"{layer}out"] - sum(parts.values())
    return terms


def _chosen(logits: Tensor, target: Tensor, other: Tensor | None) -> Tensor:
    """Return the logits of the targets, minus those of the others."""
    value = logits.gather(-1, target[..., None])[..., 0]
    return value if other is None else value - logits.gather(-1, other[..., None])[..., 0]


def _linear_readout(model: Any) -> tuple[str, int]:
    """Return start of the names and number of blocks of the stack whose output a head maps."""
    start = "decoder." if hasattr(model, "decoder") else ""
    stack: Any = getattr(model, "decoder", getattr(model, "stack", None))
    head: Any = getattr(model, "head", getattr(model, "heads", [None])[0])
    layers = getattr(head, "transform", None), getattr(model, "representation", None)
    is_linear = isinstance(head, VocabularyHead | ClassHead) and layers == (None, None)
    if not is_linear or not hasattr(stack, "blocks"):
        raise InputError("must have a linear head on transformer blocks", option="the model")
    if getattr(head, "logit_cap", None) is not None:
        message = "must have no logit_cap; set model.head.logit_cap to None to split the logits"
        raise InputError(f"{message} before the cap", option="the model")
    if any(getattr(block, "norm_placement", "") == "post" for block in stack.modules()):
        raise InputError("must not be post-norm, whose logit is no sum", option="the model")
    return start, len(stack.blocks)


def _with_constant_scale(norm: Any, inputs: tuple[Tensor], _output: Tensor) -> Tensor:
    """Compute a norm without a gradient of its scale, so that it is affine."""
    (x,) = inputs
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    y = x * (x.detach().square().mean(-1, keepdim=True) + eps).rsqrt()
    y = y if norm.weight is None else y * norm.weight
    return y if getattr(norm, "bias", None) is None else y + norm.bias
