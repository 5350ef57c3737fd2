"""Losses for token prediction with a large vocabulary, for classification and for distillation.

`linear_cross_entropy` and `token_scores` take hidden states and the output matrix in place of
logits. They compute the (N, V) logits for one slice of the tokens at a time, so all logits are
never in memory at once. A normalizer may be the number of targets on all devices.
Shapes: N tokens, D model width, V vocabulary, B batch, K classes.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fourfold.core.validation import check_choice
from fourfold.kernels import cross_entropy as kernel
from fourfold.kernels.cross_entropy import IGNORE_INDEX, LossTerms, cap

DISTILLATION_TYPES = ("hard", "soft")
LABEL_SMOOTHING_TYPES = ("uniform", "off_target", "off_target_pad")


def upcast_fp32(x: Tensor) -> Tensor:
    """Convert a bf16 or fp16 tensor to fp32, because a softmax needs more precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the data type of sums over many targets: float64, unless a device lacks it."""
    return torch.float32 if device.type == "mps" else torch.float64


def smoothing_weights(
    label_smoothing: float, label_smoothing_type: str, vocab_size: int
) -> tuple[float, float]:
    """Compute the probabilities of the target and of each other token after label smoothing.

    With the epsilon e of Szegedy et al. 2016, they are by type:

    - uniform: 1 - e + e/V and e/V (torch, transformers).
    - off_target: 1 - e and e/(V-1) (fairseq, tensor2tensor).
    - off_target_pad: 1 - e and e/(V-2), but 0 for the padding token 0 (The Annotated Transformer).

    Example:
        >>> smoothing_weights(0.1, "off_target", 11)
        (0.9, 0.01)
    """
    if label_smoothing_type == "uniform":
        return 1.0 - label_smoothing + label_smoothing / vocab_size, label_smoothing / vocab_size
    check_choice("label_smoothing_type", label_smoothing_type, LABEL_SMOOTHING_TYPES)
    others = vocab_size - (1 if label_smoothing_type == "off_target" else 2)
    return 1.0 - label_smoothing, label_smoothing / max(others, 1)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    label_smoothing_type: str = "uniform",
    z_loss: float = 0.0,
    weights: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    logit_cap: float | None = None,
) -> Tensor:
    """Compute the cross-entropy of softmax(hidden weight^T + bias), a scalar in fp32 or fp64.

    The hidden states are (N, D), the output matrix (V, D) and the bias (V,). The forward pass
    computes the logits of a slice of the tokens, then the gradients of that slice, and drops the
    logits. Peak memory is the logits of one slice and the gradient of `weight`.

    Args:
        targets: (N,) int64; targets equal to `IGNORE_INDEX` (-100) are ignored. Another target
            outside of the vocabulary raises InputError; on CUDA, an assertion of the device fails.
        label_smoothing: Epsilon, of which `smoothing_weights` describes the types.
        z_loss: Factor on the square of the logsumexp of the logits of each token, which is added to
            the loss and keeps the logsumexp close to 0 (1e-4 in PaLM, Chowdhery et al. 2022).
        weights: Differentiable factor (N,) on the loss of each target; None means 1.
        normalizer: Divisor of the sum over all targets; None means the number of targets that are
            not ignored.
        logit_cap: Limit c of the logits z, which become c tanh(z / c) (Gemma 2), or None.

    Example:
        >>> hidden, weight = torch.zeros(3, 8), torch.zeros(100, 8)
        >>> targets = torch.tensor([1, 2, IGNORE_INDEX])
        >>> linear_cross_entropy(hidden, weight, None, targets)  # log(100)
        tensor(4.6052)
    """
    on_target, elsewhere = smoothing_weights(label_smoothing, label_smoothing_type, len(weight))
    pad_id = 0 if label_smoothing_type == "off_target_pad" else None
    terms = (on_target - elsewhere, elsewhere, pad_id, z_loss)
    given = hidden, weight, bias, targets, weights
    compiling = torch.compiler.is_compiling()
    # The kernel supports neither the transforms of torch.func (grad, vmap) nor a cap of the logits.
    if torch._C._are_functorch_transforms_active() or (logit_cap is not None and compiling):
        total = _cross_entropy_of_all_logits(terms, logit_cap, *given)
    elif logit_cap is not None:
        kernel.check_targets(targets, len(weight))
        parts = []
        for rows in kernel.even_slices(hidden, weight):  # the backward pass computes them again
            factors = None if weights is None else weights[rows]
            part = hidden[rows], weight, bias, targets[rows], factors
            compute = partial(checkpoint, _cross_entropy_of_all_logits, use_reentrant=False)
            parts.append(compute(terms, logit_cap, *part))
        total = torch.stack(parts).sum()
    else:
        learns = [x is not None and x.requires_grad for x in (hidden, weight, bias, weights)]
        needs_grad = torch.is_grad_enabled() and any(learns[:3])
        needs = needs_grad, needs_grad and learns[1], torch.is_grad_enabled() and learns[3]
        settings = *terms, kernel.autocast_dtype(hidden), *needs
        if compiling:
            total = kernel.operator(*given, *settings)[0]
        else:
            total = kernel.LinearCrossEntropy.apply(*given, *settings)
    if normalizer is None:
        normalizer = (targets != IGNORE_INDEX).sum().clamp(min=1)
    return (total / normalizer).to(total.dtype)


def _cross_entropy_of_all_logits(terms: LossTerms, logit_cap: float | None, *given: Any) -> Tensor:
    """Compute the sum of the weighted losses from all logits (N, V) at once."""
    hidden, weight, bias, targets, weights = given
    logits = upcast_fp32(cap(F.linear(hidden, weight, bias), logit_cap))
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


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    logit_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the negative log-likelihood of each target, and the most likely token per position.

    The arguments are those of `linear_cross_entropy`. The log-likelihoods (N,) are in nats, in fp32
    or fp64, and 0 where the target is `IGNORE_INDEX`. The tokens (N,) are int64.

    Example:
        >>> hidden, weight = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
        >>> _, best = token_scores(hidden, weight, None, torch.tensor([0, 2]))
        >>> best  # token 1 is more likely than the target 2
        tensor([0, 1])
    """
    # Detached in place of `torch.no_grad`, which compiled code does not leave after an error.
    bias = None if bias is None else bias.detach()
    score = kernel.score_operator if torch.compiler.is_compiling() else kernel.score_tokens
    dtype = kernel.autocast_dtype(hidden)
    return score(hidden.detach(), weight.detach(), bias, targets, dtype, logit_cap)


def probabilities(logits: Tensor, multi_label: bool) -> Tensor:
    """Return the probabilities of logits (B, K) of a classifier in fp32, by sigmoid or softmax.

    If K is 1, the model predicts numbers, which are returned, unless it predicts labels.
    """
    logits = logits.float()
    if multi_label:
        return logits.sigmoid()
    return logits if logits.shape[-1] == 1 else logits.softmax(-1)


def distillation_loss(
    logits: Tensor, teacher_logits: Tensor, distillation_type: str, temperature: float
) -> Tensor:
    """Compute the distillation loss of a student, summed over logits (B, K), in fp32.

    The hard loss is the cross-entropy of the teacher's most likely class (Touvron et al. 2020,
    eq. 3). The soft loss with the temperature t is t^2 KL(softmax(teacher / t) || softmax(student /
    t)) (Hinton et al. 2015; Touvron et al. 2020, eq. 2). Another type raises InputError.

    Example:
        >>> teacher = torch.tensor([[2.0, 0.0]])
        >>> distillation_loss(torch.zeros(1, 2), teacher, "hard", temperature=1.0)  # log(2)
        tensor(0.6931)
    """
    check_choice("distillation_type", distillation_type, DISTILLATION_TYPES)
    logits = upcast_fp32(logits)
    teacher_logits = teacher_logits.to(logits.dtype)
    if distillation_type == "hard":
        return F.cross_entropy(logits, teacher_logits.argmax(-1), reduction="sum")
    student = F.log_softmax(logits / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
    return temperature**2 * F.kl_div(student, teacher, reduction="sum", log_target=True)
