"""Losses. Every one is a sum over valid targets divided by a normaliser that may be global.

The cost of a vocabulary is the cost of a language model: `linear_cross_entropy` takes hidden
states and the output matrix and never holds more than a slice of the (N, V) logits.
Shapes: N tokens, D model width, V vocabulary, B batch, K classes.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.core.config import check_word

IGNORED = -100
SMOOTHINGS = ("uniform", "off_target", "off_target_pad")
# Logits held at once, in numbers (128 MiB in fp32): few enough to fit, and enough rows that adding
# a slice's share to the (V, D) gradient is little against its matrix products.
SLICE = 2**25
WORDS = 2**13  # see `_Gradients.add`


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
    weights: Tensor | None = None,
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
        weights: (N,) how much each target counts; None means 1.
        normalizer: What the sum is divided by; None means the number of valid targets.

    Returns:
        A scalar in fp32 (fp64 for fp64 inputs).
    """
    on_target, elsewhere = smoothing_weights(label_smoothing, smoothing, weight.shape[0])
    pad = 0 if smoothing == "off_target_pad" else None
    goal = (on_target - elsewhere, elsewhere, pad)
    total = _LinearCrossEntropy.apply(
        hidden, weight, bias, targets, weights, goal, torch.is_grad_enabled()
    )
    if normalizer is None:
        normalizer = (targets != IGNORED).sum().clamp(min=1)
    return (total / normalizer).to(total.dtype)


class _LinearCrossEntropy(torch.autograd.Function):
    """The summed loss, with its gradients made in the same pass over slices of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        goal: tuple[float, float, int | None],
        learning: bool,
    ) -> Tensor:
        x, w, exact = _operands(hidden, weight)
        learning = learning and any(ctx.needs_input_grad)
        gradients = _Gradients(x, w, bias, exact) if learning else None
        total = torch.zeros((), dtype=exact, device=x.device)
        for rows, logits, spare in _logits_by_slice(x, w, bias, exact):
            counts = (targets[rows] != IGNORED).to(exact)
            if weights is not None:
                counts *= weights[rows]
            losses, slope = _loss_and_slope(logits, targets[rows], counts, *goal)
            total += losses.sum()
            if gradients is not None:
                gradients.add(rows, slope, spare)
        if gradients is not None:
            ctx.save_for_backward(gradients.hidden, gradients.weight, gradients.bias)
            ctx.dtypes = [None if t is None else t.dtype for t in (hidden, weight, bias)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled in the dtype of `grad`, fp32 or better: 1 / (number of tokens) is not bf16's.
        scaled = [
            None if saved is None else (saved.to(grad.dtype) * grad).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None, None


class _Gradients:
    """Gradients of the summed loss, which grow slice by slice."""

    def __init__(self, x: Tensor, w: Tensor, bias: Tensor | None, exact: torch.dtype) -> None:
        self.x, self.w = x, w
        self.hidden = torch.empty_like(x)
        self.weight = torch.zeros_like(w, dtype=exact)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=exact)

    def add(self, rows: slice, slope: Tensor, spare: Tensor | None) -> None:
        """Add those of `rows`, whose logits have the gradient `slope` (n, V)."""
        if self.bias is not None:
            self.bias += slope.sum(0)
        if spare is not None:
            slope = spare.copy_(slope)
        torch.mm(slope, self.w, out=self.hidden[rows])
        if spare is None:
            self.weight.addmm_(slope.T, self.x[rows])
            return
        # Low precision rounds each slice's share once and keeps the sum in fp32; some words at a
        # time, so that a share is still in the processor's cache when it is added.
        for gradient, part in zip(self.weight.split(WORDS), slope.split(WORDS, 1), strict=True):
            gradient += part.T @ self.x[rows]


def _loss_and_slope(
    logits: Tensor,
    targets: Tensor,
    counts: Tensor,
    extra: float,
    elsewhere: float,
    pad: int | None,
) -> tuple[Tensor, Tensor]:
    """Losses (n,) times `counts`, and their gradient (n, V) in the place of the logits z.

    With q = elsewhere + extra on the target, elsewhere on other words, 0 on `pad`, sum(q) = 1:
    loss = logsumexp(z) - sum(q z) and d loss / d z = softmax(z) - q.
    """
    place = torch.arange(len(targets), device=targets.device), targets.clamp(min=0)
    hit = extra * logits[place]  # sum(q z)
    if elsewhere:
        hit = hit + elsewhere * logits.sum(-1)
        if pad is not None:
            hit = hit - elsewhere * logits[:, pad]
    top = logits.amax(-1, keepdim=True)
    mass = logits.sub_(top).exp_().sum(-1, keepdim=True)
    losses = ((top + mass.log()).squeeze(-1) - hit) * counts
    slope = logits.mul_(counts[:, None] / mass)
    if elsewhere:
        slope -= elsewhere * counts[:, None]
        if pad is not None:
            slope[:, pad] += elsewhere * counts
    slope[place] -= extra * counts
    return losses, slope


def _operands(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both as autocast would hand them to a matrix product, and the dtype for sums."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        low = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(low), weight.to(low)
    return hidden, weight, torch.promote_types(hidden.dtype, torch.float32)


def _logits_by_slice(
    x: Tensor, w: Tensor, bias: Tensor | None, exact: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Rows, their logits (n, V) in `exact`, and in low precision a spare (n, V) in it.

    All slices stand in one buffer, to be overwritten at will: fresh memory costs more than a pass.
    """
    n_slices = max(1, math.ceil(len(x) * len(w) / SLICE))
    step = max(1, math.ceil(len(x) / n_slices))  # slices of equal size, no small rest
    buffer = x.new_empty(min(step, len(x)), len(w), dtype=exact)
    low = None if x.dtype == exact else torch.empty_like(buffer, dtype=x.dtype)
    for start in range(0, max(1, len(x)), step):
        rows = slice(start, start + step)
        n = len(x[rows])
        logits, spare = buffer[:n], None if low is None else low[:n]
        # With `out` a product is left alone by autocast.
        torch.mm(x[rows], w.T, out=logits if spare is None else spare)
        if spare is not None:
            logits.copy_(spare)
        if bias is not None:
            logits += bias
        yield rows, logits, spare


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
        nll (N,) in nats, fp32 (fp64 for fp64 inputs), 0 where the target is IGNORED;
        prediction (N,) int64.
    """
    nll, prediction = [], []
    x, w, exact = _operands(hidden, weight)
    for rows, logits, _ in _logits_by_slice(x, w, bias, exact):
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
