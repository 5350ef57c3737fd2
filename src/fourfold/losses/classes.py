"""The loss of a classifier. Shapes: B batch, K classes."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
