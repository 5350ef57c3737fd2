"""Losses. Every one is a sum over valid targets divided by a normaliser that may be global.

The cost of a vocabulary is the cost of a language model: `linear_cross_entropy` takes hidden
states and the output matrix and never holds more than a slice of the (N, V) logits.
Shapes: N tokens, D model width, V vocabulary, B batch, K classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.core.config import check_word

IGNORED = -100
SMOOTHINGS = ("uniform", "off_target", "off_target_pad")
# Logits held at once, in numbers (64 MiB in fp32): large enough for a fast matrix product.
SLICE = 2**24


def smoothing_weights(epsilon: float, convention: str, n_words: int) -> tuple[float, float]:
    """Weight of the target and of every other word in a smoothed distribution.

    Three conventions are in use for the same epsilon (Szegedy et al. 2016 is the first):
    uniform, 1 - e + e/V and e/V (torch, transformers); off_target, 1 - e and e/(V-1) (fairseq,
    tensor2tensor); off_target_pad, 1 - e and e/(V-2) with nothing on the padding word 0
    (The Annotated Transformer).
    """
    check_word("smoothing", convention, SMOOTHINGS)
    if convention == "uniform":
        return 1.0 - epsilon + epsilon / n_words, epsilon / n_words
    others = n_words - (1 if convention == "off_target" else 2)
    return 1.0 - epsilon, epsilon / max(others, 1)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    smoothing: str = "uniform",
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Cross-entropy of softmax(hidden weight^T + bias), computed slice by slice.

    The backward pass costs nothing of its own: gradients are made while a slice of the logits is
    there, so that peak memory is one slice and the gradient of the matrix.

    Args:
        hidden: (N, D).
        weight: (V, D), often the token embedding.
        bias: (V,) or None.
        targets: (N,) int64; IGNORED (-100) does not count.
        label_smoothing: Probability taken from the target.
        smoothing: Who gets it, see `smoothing_weights`.
        normalizer: What the sum is divided by; None means the number of valid targets.

    Returns:
        A scalar in fp32 (fp64 for fp64 inputs).
    """
    n_words = weight.shape[0]
    target_weight, other_weight = smoothing_weights(label_smoothing, smoothing, n_words)
    pad = 0 if smoothing == "off_target_pad" else None
    if normalizer is None:
        normalizer = (targets != IGNORED).sum().clamp(min=1)
    divisor = torch.as_tensor(normalizer, device=hidden.device, dtype=torch.float64)
    return _LinearCrossEntropy.apply(
        hidden, weight, bias, targets, divisor, target_weight - other_weight, other_weight, pad
    )


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass over slices of rows.

    With q = a on the target, b elsewhere, 0 on an excluded word, and sum(q) = 1:
    loss = logsumexp(z) - sum(q z) and d loss / d z = softmax(z) - q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        divisor: Tensor,
        extra: float,
        other: float,
        pad: int | None,
    ) -> Tensor:
        need = any(ctx.needs_input_grad[:3])
        x, w = (_autocast(t) for t in (hidden, weight))
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        total = torch.zeros((), dtype=exact, device=x.device)
        d_hidden = torch.empty_like(x) if need else None
        d_weight = torch.zeros_like(w, dtype=exact) if need else None
        d_bias = torch.zeros_like(bias, dtype=exact) if need and bias is not None else None
        for rows in _slices(len(x), len(w)):
            logits = _logits(x[rows], w, bias, exact)
            target = targets[rows]
            valid = (target != IGNORED)[:, None]
            column = target.clamp(min=0)[:, None]
            top = logits.logsumexp(-1, keepdim=True)
            loss = top - extra * logits.gather(1, column)
            if other:
                loss -= other * logits.sum(-1, keepdim=True)
                if pad is not None:
                    loss += other * logits[:, pad : pad + 1]
            total += torch.where(valid, loss, 0.0).sum()
            if d_hidden is None or d_weight is None:
                continue
            slope = logits.sub_(top).exp_()  # the softmax, in the place of the logits
            if other:
                slope -= other
                if pad is not None:
                    slope[:, pad] += other
            slope.scatter_add_(1, column, torch.full_like(top, -extra))
            slope *= (valid / divisor).to(exact)
            if d_bias is not None:
                d_bias += slope.sum(0)
            _accumulate(slope.to(x.dtype), x[rows], w, d_hidden[rows], d_weight)
        if need:
            ctx.save_for_backward(d_hidden, d_weight, d_bias)
            ctx.dtypes = (hidden.dtype, weight.dtype)
        return (total / divisor).to(exact)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        d_hidden = (d_hidden * grad.to(d_hidden.dtype)).to(ctx.dtypes[0])
        d_weight = (d_weight * grad).to(ctx.dtypes[1])
        d_bias = None if d_bias is None else d_bias * grad
        return d_hidden, d_weight, d_bias, None, None, None, None, None


def _autocast(x: Tensor) -> Tensor:
    """What autocast would do to the inputs of a matrix product; custom functions do it by hand."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    return x


def _slices(n_rows: int, n_words: int) -> list[slice]:
    step = max(1, SLICE // n_words)
    return [slice(i, i + step) for i in range(0, n_rows, step)]


def _logits(x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    device = x.device.type
    with torch.autocast(device, enabled=False):
        logits = (x @ w.T).to(dtype)
    return logits if bias is None else logits.add_(bias)


def _accumulate(slope: Tensor, x: Tensor, w: Tensor, d_x: Tensor, d_w: Tensor) -> None:
    with torch.autocast(x.device.type, enabled=False):
        torch.mm(slope, w, out=d_x)
        if d_w.dtype == slope.dtype:
            d_w.addmm_(slope.T, x)
        else:  # low precision: each slice's share is rounded once, their sum is kept in fp32
            d_w += slope.T @ x


@torch.no_grad()
def token_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Each target's negative log-likelihood and each place's most likely word, slice by slice.

    Args:
        hidden: (N, D).
        weight: (V, D).
        bias: (V,) or None.
        targets: (N,) int64.

    Returns:
        nll (N,) fp32 in nats, 0 where the target is IGNORED; prediction (N,) int64.
    """
    x, w = (_autocast(t) for t in (hidden, weight))
    nll, prediction = [], []
    for rows in _slices(len(x), len(w)):
        logits = _logits(x[rows], w, bias, torch.float32)
        nll.append(F.cross_entropy(logits, targets[rows], reduction="none", ignore_index=IGNORED))
        prediction.append(logits.argmax(-1))
    return torch.cat(nll), torch.cat(prediction)


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Cross-entropy for classes, in fp32: hard labels, or soft ones from mixup and cutmix.

    Args:
        logits: (B, K).
        labels: (B,) int64, or (B, K) probabilities.
        label_smoothing: Probability spread evenly over all K (Szegedy et al. 2016).
        normalizer: What the sum is divided by; None means B.

    Returns:
        A scalar.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    if labels.is_floating_point():
        labels = labels.to(exact)
    total = F.cross_entropy(
        logits.to(exact), labels, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / (len(logits) if normalizer is None else normalizer)
