"""Losses for token prediction with a large vocabulary, for classification and for distillation.

`linear_cross_entropy` and `classification_loss` divide the sum over all targets by a normalizer,
which may be the number of targets on all devices. `distillation_loss` returns the sum.
`linear_cross_entropy` and `token_scores` take hidden states and the output matrix in place of
logits. They compute the (N, V) logits for one slice of the tokens at a time, so all logits are
never in memory at once.
Shapes: N tokens, D model width, V vocabulary, B batch, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import check_choice
from fourfold.kernels.cross_entropy import IGNORE_INDEX, LossTerms
from fourfold.kernels.loss_operators import score_tokens, summed_cross_entropy

DISTILLATION_TYPES = ("hard", "soft")
LABEL_SMOOTHING_TYPES = ("uniform", "off_target", "off_target_pad")


def upcast_fp32(x: Tensor) -> Tensor:
    """Convert a bf16 or fp16 tensor to fp32, because a softmax needs more precision.

    Tensors in fp32 and fp64 are returned unchanged. A tensor may have any shape.

    Example:
        >>> upcast_fp32(torch.ones(2, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def smoothing_weights(
    label_smoothing: float, label_smoothing_type: str, vocab_size: int
) -> tuple[float, float]:
    """Compute the probabilities of the target and of each other token after label smoothing.

    With the epsilon e of Szegedy et al. 2016, the target and each other token have the
    probabilities:

    - uniform: 1 - e + e/V and e/V (torch, transformers).
    - off_target: 1 - e and e/(V-1) (fairseq, tensor2tensor).
    - off_target_pad: 1 - e and e/(V-2), but 0 for the padding token 0 (The Annotated Transformer).

    Args:
        label_smoothing: Epsilon e.
        label_smoothing_type: Name of one of the conventions above.
        vocab_size: Size V of the vocabulary.

    Returns:
        A tuple of the probability of the target, and the probability of each other token.

    Raises:
        InputError: `label_smoothing_type` is none of these three conventions.

    Example:
        >>> smoothing_weights(0.1, "off_target", 11)
        (0.9, 0.01)
    """
    check_choice("label_smoothing_type", label_smoothing_type, LABEL_SMOOTHING_TYPES)
    if label_smoothing_type == "uniform":
        return 1.0 - label_smoothing + label_smoothing / vocab_size, label_smoothing / vocab_size
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
    """Compute the cross-entropy of softmax(hidden weight^T + bias) without all logits in memory.

    The tokens are divided into slices. The forward pass computes the logits of a slice, then the
    gradients of that slice, and drops the logits. Peak memory is therefore the logits of one slice
    and the gradient of `weight`. The transforms of torch.func (grad, vmap) get all logits at once.

    Args:
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D), often the token embedding.
        bias: (V,) or None.
        targets: (N,) int64; targets equal to `IGNORE_INDEX` (-100) are ignored.
        label_smoothing: Epsilon of label smoothing, from 0 (no smoothing) to 1.
        label_smoothing_type: Tokens that receive the epsilon: uniform (all tokens), off_target (all
            but the target) or off_target_pad (all but the target and the padding token 0). The
            probabilities are those of `smoothing_weights`.
        z_loss: Factor on the square of the logsumexp of the logits of each token, which is added to
            the loss and keeps the logsumexp close to 0 (1e-4 in PaLM, Chowdhery et al. 2022).
        weights: (N,) factor on the loss of each target; None means 1. The loss is differentiable
            with respect to these factors.
        normalizer: Divisor of the sum over all targets; None means the number of targets that are
            not ignored.
        logit_cap: Limit c of the logits z, which become c tanh(z / c) (Gemma 2). None means no
            limit.

    Returns:
        A scalar in fp32, or in fp64 if the inputs are in fp64.

    Raises:
        InputError: `label_smoothing_type` is unknown, or a target is negative but not
            `IGNORE_INDEX`, or is at least V. On CUDA, an assertion of the device fails instead.

    Example:
        >>> hidden, weight = torch.zeros(3, 8), torch.zeros(100, 8)
        >>> targets = torch.tensor([1, 2, IGNORE_INDEX])
        >>> linear_cross_entropy(hidden, weight, None, targets)  # log(100)
        tensor(4.6052)
    """
    on_target, elsewhere = smoothing_weights(label_smoothing, label_smoothing_type, weight.shape[0])
    pad_id = 0 if label_smoothing_type == "off_target_pad" else None
    terms = LossTerms(on_target - elsewhere, elsewhere, pad_id, z_loss)
    total = summed_cross_entropy(terms, hidden, weight, bias, targets, weights, logit_cap)
    if normalizer is None:
        normalizer = (targets != IGNORE_INDEX).sum().clamp(min=1)
    return (total / normalizer).to(total.dtype)


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    logit_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the negative log-likelihood of each target, and the most likely token per position.

    As in `linear_cross_entropy`, the logits of one slice of the tokens are in memory at a time.

    Args:
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: (N,) int64, vocabulary indices or `IGNORE_INDEX` (-100).
        logit_cap: Limit c of the logits z, which become c tanh(z / c). None means no limit.

    Returns:
        Tuple of two tensors (N,). The first one holds the negative log-likelihood of each target in
        nats, and 0 where the target is `IGNORE_INDEX`. It is in fp32, or in fp64 if the inputs are
        in fp64. The second one holds the most likely token of each position, int64.

    Raises:
        InputError: A target is negative but not `IGNORE_INDEX`, or is at least V. On CUDA, an
            assertion of the device fails instead.

    Example:
        >>> hidden, weight = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
        >>> nll, best = token_scores(hidden, weight, None, torch.tensor([0, 2]))
        >>> best  # token 1 is more likely than the target 2
        tensor([0, 1])
        >>> nll.exp().round().int().tolist()  # one divided by the probabilities of the targets
        [1, 8105]
    """
    # Detached in place of `torch.no_grad`, which compiled code does not leave after an error.
    bias = None if bias is None else bias.detach()
    return score_tokens(hidden.detach(), weight.detach(), bias, targets, logit_cap)


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Compute the cross-entropy of class logits, in fp32, or in fp64 if the logits are in fp64.

    Args:
        logits: (B, K).
        labels: Class indices (B,) int64, or class probabilities (B, K) such as those of MixUp and
            CutMix.
        label_smoothing: Probability mass that is spread evenly over all K classes (Szegedy et al.
            2016).
        normalizer: Divisor of the sum over the batch; None means the batch size B.

    Returns:
        A scalar.

    Example:
        >>> classification_loss(torch.zeros(2, 10), torch.tensor([3, 7]))  # log(10)
        tensor(2.3026)
    """
    logits = upcast_fp32(logits)
    if labels.is_floating_point():
        labels = labels.to(logits.dtype)
    total = F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="sum")
    return total / (len(logits) if normalizer is None else normalizer)


def distillation_loss(
    logits: Tensor, teacher_logits: Tensor, distillation_type: str, temperature: float
) -> Tensor:
    """Compute the distillation loss of a student, summed over the batch, in fp32.

    Args:
        logits: Logits of the student, (B, K).
        teacher_logits: Logits of the teacher, (B, K).
        distillation_type: hard or soft. The hard loss is the cross-entropy of the teacher's most
            likely class (Touvron et al. 2020, eq. 3). The soft loss is
            t^2 KL(softmax(teacher / t) || softmax(student / t)) (Hinton et al. 2015; Touvron et al.
            2020, eq. 2).
        temperature: Temperature t of the soft loss. Not used by the hard loss.

    Returns:
        A scalar.

    Raises:
        InputError: `distillation_type` is unknown.

    Example:
        >>> teacher = torch.tensor([[2.0, 0.0]])
        >>> distillation_loss(teacher.clone(), teacher, "soft", temperature=3.0).item()
        0.0
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
