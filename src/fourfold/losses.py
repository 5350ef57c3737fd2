"""Losses. Every one is a sum over valid targets divided by a normaliser that may be global.

The cost of a vocabulary is the cost of a language model: `linear_cross_entropy` takes hidden
states and the output matrix and never holds more than a slice of the (N, V) logits.
Shapes: N tokens, D model width, V vocabulary, B batch, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.config import check_word
from fourfold.kernels.cross_entropy import IGNORED, LinearCrossEntropy, even_slices, operands

DISTILLATIONS = ("hard", "soft")
SMOOTHINGS = ("uniform", "off_target", "off_target_pad")


def exact(x: Tensor) -> Tensor:
    """In fp32 at least: half precision has too few digits for a softmax."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
    learning = torch.is_grad_enabled()
    total = LinearCrossEntropy.apply(goal, learning, hidden, weight, bias, targets, weights)
    if normalizer is None:
        normalizer = (targets != IGNORED).sum().clamp(min=1)
    return (total / normalizer).to(total.dtype)


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
    x, w, exact = operands(hidden, weight)
    nll = torch.empty(len(x), dtype=exact, device=x.device)
    prediction = torch.empty(len(x), dtype=torch.long, device=x.device)
    for rows in even_slices(x, w):
        logits = torch.mm(x[rows], w.T).to(exact)
        if bias is not None:
            logits += bias
        nll[rows] = F.cross_entropy(logits, targets[rows], reduction="none", ignore_index=IGNORED)
        prediction[rows] = logits.argmax(-1)
    return nll, prediction


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
    logits = exact(logits)
    if labels.is_floating_point():
        labels = labels.to(logits.dtype)
    total = F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="sum")
    return total / (len(logits) if normalizer is None else normalizer)


def distillation_loss(logits: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    """What a student loses against its teacher, summed over the batch, in fp32.

    Args:
        logits: Of the student, (B, K).
        teacher: Of the teacher, (B, K).
        kind: hard, cross-entropy of the class that the teacher finds most likely (DeiT, eq. 3); or
            soft, t^2 KL(softmax(teacher / t) || softmax(logits / t)) (Hinton et al. 2015; eq. 2).
        temperature: t, of soft.

    Returns:
        A scalar.
    """
    check_word("distillation", kind, DISTILLATIONS)
    logits = exact(logits)
    teacher = teacher.to(logits.dtype)
    if kind == "hard":
        return F.cross_entropy(logits, teacher.argmax(-1), reduction="sum")
    ours, theirs = (F.log_softmax(x / temperature, dim=-1) for x in (logits, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="sum", log_target=True)
