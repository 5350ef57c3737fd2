"""Cross-entropy of a large vocabulary as a differentiable function and as custom operators.

The logits are computed in slices (see `fourfold.kernels.cross_entropy`). Compiled code calls the
custom operators, because torch.compile does not trace into an operator. Otherwise torch.compile
would unroll the loop over the slices.
Shapes: N tokens, D model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fourfold.errors import InputError
from fourfold.kernels.autocast import autocast_dtype
from fourfold.kernels.cross_entropy import (
    IGNORE_INDEX,
    LossTerms,
    Pass,
    even_slices,
    matmul_operands,
)
from fourfold.kernels.differentiation import differentiable_once


def summed_cross_entropy(
    terms: LossTerms,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    logit_cap: float | None = None,
) -> Tensor:
    """Compute the sum of the weighted cross-entropy losses of all tokens.

    Eager code uses an autograd function. Compiled code uses a custom operator. The transforms of
    torch.func support neither of the two, so they get a formula that stores all logits. With
    `logit_cap`, eager code computes the logits of each slice again in the backward pass, and
    compiled code stores all logits.

    Args:
        terms: Target distribution and factor of the z-loss.
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: Target tokens (N,) int64. Targets equal to `IGNORE_INDEX` (-100) are ignored.
        weights: Factors (N,) on the losses. None means 1.
        logit_cap: Limit c of the logits z, which become c tanh(z / c). None means no limit.

    Returns:
        A scalar in fp32, or in fp64 if the inputs are in fp64.

    Raises:
        InputError: A target is neither a token of the vocabulary nor `IGNORE_INDEX`.
    """
    is_capped_graph = logit_cap is not None and torch.compiler.is_compiling()
    if is_capped_graph or torch._C._are_functorch_transforms_active():
        return _plain(terms, hidden, weight, bias, targets, weights, logit_cap)
    if logit_cap is not None:
        check_targets(targets, len(weight))
        parts = [
            checkpoint(
                *(_plain, terms, hidden[rows], weight, bias, targets[rows]),
                *(None if weights is None else weights[rows], logit_cap),
                use_reentrant=False,
            )
            for rows in even_slices(hidden, weight)
        ]
        return torch.stack(parts).sum()
    learns = [x is not None and x.requires_grad for x in (hidden, weight, bias)]
    needs_grad = torch.is_grad_enabled() and any(learns)
    needs_weight = needs_grad and weight.requires_grad  # not if the output matrix is frozen
    needs_losses = torch.is_grad_enabled() and weights is not None and weights.requires_grad
    dtype = autocast_dtype(hidden)
    settings = *terms, dtype, needs_grad, needs_weight, needs_losses
    if torch.compiler.is_compiling():
        return _operator(hidden, weight, bias, targets, weights, *settings)[0]
    return _LinearCrossEntropy.apply(hidden, weight, bias, targets, weights, *settings)


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy in eager mode.

    The forward pass computes the gradients. The backward pass multiplies them by the incoming
    gradient in place.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        total, *ctx.gradients = _compute(*inputs)
        ctx.save_for_backward(*inputs[:5])
        ctx.settings = inputs[5:]
        return total

    @staticmethod
    @differentiable_once("linear_cross_entropy", "F.cross_entropy(model(ids), ...) or torch.func")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward pass: the first scaled the gradients in place
            gradients = _compute(*inputs, *ctx.settings)[1:]
        return _scaled(gradients, grad, inputs, ctx.settings[-3:], Tensor.mul_)


def _compute(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    extra: float,
    elsewhere: float,
    pad_id: int | None,
    z_loss: float,
    dtype: torch.dtype | None,
    needs_grad: bool,
    needs_weight: bool,
    needs_losses: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the sum of the weighted losses and its gradients, one slice of the logits at a time.

    Args:
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: Target tokens (N,) int64.
        weights: Factors (N,) on the losses, or None.
        extra: Probability of the target after label smoothing, minus that of any other token.
        elsewhere: Probability of each token other than the target and `pad_id`.
        pad_id: Padding token, whose probability is 0, or None.
        z_loss: Factor on the square of the logsumexp of the logits, which is added to the loss.
        dtype: Data type of the matrix products under autocast. None without autocast.
        needs_grad: Compute the gradients of hidden states and bias.
        needs_weight: Compute the gradient of the output matrix, too.
        needs_losses: Return the loss of each target.

    Returns:
        A tuple of five tensors: the sum; its gradients with respect to hidden states (N, D), output
        matrix (V, D) and bias (V,); and the loss of each target (N,), which is the gradient with
        respect to `weights`. A tensor that is not needed is empty.
    """
    check_targets(targets, len(weight))
    terms = LossTerms(extra, elsewhere, pad_id, z_loss)
    needs = needs_grad, needs_weight, needs_losses
    run = Pass(terms, *needs, hidden, weight, bias, targets, weights, dtype)
    empty = run.total.new_empty
    if run.gradients is None:
        return run.total, empty(0), empty(0), empty(0), run.losses
    gradients = run.gradients
    d_weight, d_bias = (empty(0) if x is None else x for x in (gradients.weight, gradients.bias))
    return run.total, gradients.hidden, d_weight, d_bias, run.losses


_operator = torch.library.custom_op("fourfold::linear_cross_entropy", _compute, mutates_args=())


@_operator.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    targets, _, _, _, _, _, dtype, needs_grad, needs_weight, needs_losses = inputs
    x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
    empty = x.new_empty(0, dtype=sum_dtype)
    gradients = [
        torch.empty_like(given, dtype=sum_dtype) if given is not None and needed else empty.clone()
        for given, needed in ((x, needs_grad), (w, needs_weight), (bias, needs_grad))
    ]
    losses = x.new_empty(targets.shape if needs_losses else 0, dtype=sum_dtype)
    return x.new_empty((), dtype=sum_dtype), *gradients, losses


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.needs = inputs[-3:]


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    inputs, gradients = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    return _scaled(gradients, grad, inputs, ctx.needs, Tensor.mul)


_operator.register_autograd(_backward, setup_context=_save)


def _scaled(
    gradients: Sequence[Tensor],
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    needs: tuple[bool, bool, bool],
    multiply: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor | None, ...]:
    """Multiply gradients by the incoming gradient, and convert them to the types of the inputs.

    The product is computed in fp32 or fp64, because bf16 cannot represent 1 / (number of tokens).

    Args:
        gradients: Gradients of the sum of the losses with respect to hidden states (N, D), output
            matrix (V, D), bias (V,) and `weights` (N,), in this order.
        grad: Gradient of the final loss with respect to the sum, a scalar.
        inputs: Hidden states, output matrix, bias or None, targets, and `weights` or None, in this
            order.
        needs: The arguments `needs_grad`, `needs_weight` and `needs_losses` of `_compute`.
        multiply: Product of a tensor and a scalar, `Tensor.mul` or `Tensor.mul_`.

    Returns:
        A tuple with one entry for each of the 13 arguments of `_compute`, in their order. The entry
        is None for an argument without a gradient.
    """
    hidden, weight, bias, _, weights = inputs
    needs_grad, needs_weight, needs_losses = needs
    scaled = [
        multiply(total, grad).to(given.dtype) if given is not None and needed else None
        for total, given, needed in zip(
            gradients,
            (hidden, weight, bias, weights),
            (needs_grad, needs_weight, needs_grad, needs_losses),
            strict=True,
        )
    ]
    return *scaled[:3], None, scaled[3], *[None] * 8


def _plain(
    terms: LossTerms,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    logit_cap: float | None,
) -> Tensor:
    """Compute the sum of the weighted losses from all logits (N, V) at once.

    Args:
        terms: Target distribution and factor of the z-loss.
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: Target tokens (N,) int64. Targets equal to `IGNORE_INDEX` (-100) are ignored.
        weights: Factors (N,) on the losses. None means 1.
        logit_cap: Limit of the logits, or None.
    """
    logits = cap(F.linear(hidden, weight, bias), logit_cap)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_p = logits.log_softmax(-1)
    counts = targets != IGNORE_INDEX
    columns = torch.where(counts, targets, 0)[:, None]
    extra, elsewhere, pad_id, z_loss = terms
    losses = -extra * log_p.gather(1, columns).squeeze(1)
    if elsewhere:
        losses = losses - elsewhere * log_p.sum(-1)
        if pad_id is not None:
            losses = losses + elsewhere * log_p[:, pad_id]
    if z_loss:
        losses = losses + z_loss * logits.logsumexp(-1).square()
    losses = torch.where(counts, losses, 0.0)
    return (losses if weights is None else losses * weights).sum()


def cap(x: Tensor, limit: float | None) -> Tensor:
    """Compute c tanh(x / c), a smooth limit of x to the range from -c to c (Bello et al. 2016).

    Args:
        x: Tensor of any shape.
        limit: The limit c. None returns x unchanged.
    """
    return x if limit is None else limit * (x / limit).tanh()


def check_targets(targets: Tensor, vocab_size: int) -> None:
    """Raise InputError unless all targets are tokens of the vocabulary or `IGNORE_INDEX`.

    On CUDA, an assertion on the device fails instead, because the check does not wait for the GPU.

    Args:
        targets: (N,) int64.
        vocab_size: Size V of the vocabulary.
    """
    outside = ((targets < 0) | (targets >= vocab_size)) & (targets != IGNORE_INDEX)
    allowed = f"from 0 to {vocab_size - 1}, or {IGNORE_INDEX} for a target that does not count"
    if not targets.is_cpu:
        torch._assert_async(~outside.any(), f"targets must be {allowed}")
    elif type(targets) is Tensor and bool(outside.any()):
        raise InputError(f"must be {allowed}, got {targets[outside][0].item()}", option="targets")


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of each target and the most likely token of each position.

    The logits of one slice of the tokens are in memory at a time. Compiled code calls a custom
    operator.

    Args:
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: Target tokens (N,) int64.
        logit_cap: Limit of the logits, or None.

    Returns:
        A tuple of negative log-likelihoods (N,) in nats, which are 0 where the target is
        `IGNORE_INDEX`, and most likely tokens (N,) int64.

    Raises:
        InputError: A target is neither a token of the vocabulary nor `IGNORE_INDEX`.
    """
    score = _score_operator if torch.compiler.is_compiling() else _score
    return score(hidden, weight, bias, targets, autocast_dtype(hidden), logit_cap)


def _score(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    dtype: torch.dtype | None,
    logit_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    check_targets(targets, len(weight))
    x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
    nll = torch.empty(len(x), dtype=sum_dtype, device=x.device)
    prediction = torch.empty(len(x), dtype=torch.long, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        for rows in even_slices(x, w):
            logits = torch.mm(x[rows], w.T).to(sum_dtype)
            if bias is not None:
                logits += bias
            logits = cap(logits, logit_cap)
            # Targets of IGNORE_INDEX, which is the default of `ignore_index`, get 0.
            nll[rows] = F.cross_entropy(logits, targets[rows], reduction="none")
            prediction[rows] = logits.argmax(-1)
    return nll, prediction


_score_operator = torch.library.custom_op("fourfold::token_scores", _score, mutates_args=())


@_score_operator.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Any, targets: Any, dtype: Any, logit_cap: Any = None
) -> tuple[Tensor, Tensor]:
    x, _, sum_dtype = matmul_operands(hidden, weight, dtype)
    return x.new_empty(len(x), dtype=sum_dtype), x.new_empty(len(x), dtype=torch.long)
