"""Losses of hard attention: REINFORCE (Xu et al. 2015) and the exact marginal (Wu et al. 2018).

Shapes: B rows, T target tokens, S source positions, N target tokens of all rows, D width of the
output layer's input, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.losses import IGNORE_INDEX, linear_cross_entropy, token_scores

BASELINE_DECAY = 0.9  # of the moving average of the loss (Xu et al. 2015, section 4.1)


def log_weights(alpha: Tensor) -> Tensor:
    """Compute the logarithm of attention weights, in the shape of `alpha`.

    Where a weight is 0, the result is -inf and has no gradient.
    """
    tiny = torch.finfo(alpha.dtype).tiny
    return alpha.clamp(min=tiny).log().masked_fill(alpha == 0, float("-inf"))


def reinforce_term(
    nll: Tensor,
    alpha: Tensor,
    drawn: Tensor,
    counts: Tensor,
    *,
    baseline: Tensor | float = 0.0,
    reward_weight: float = 1.0,
    entropy_weight: float = 0.0,
) -> Tensor:
    """Compute a term with the value 0 that adds the REINFORCE gradient to the loss of a draw.

    The objective is the expectation of -log p(y | drawn positions), an upper bound of -log p(y) (Xu
    et al. 2015, section 4.1), minus `entropy_weight` times the entropy of alpha. For one draw,
    the gradient of the sum of `nll` plus this term is an unbiased estimate of the gradient of the
    objective. The gradient of this term is

        sum_t reward_weight (R_t - b_t) grad log alpha_t[drawn_t] - entropy_weight grad H(alpha_t).

    R_t is the sum of the losses of the tokens t, t + 1, ..., T. Only these losses depend on the
    position drawn for token t. b_t is `baseline` times the number of these tokens. The paper uses
    the loss of all T tokens for each t, and the moving average of that loss. The mean of the
    gradient is the same, but its variance is larger.

    The released code deviates from the paper. It uses the mean loss of the tokens, divides the
    REINFORCE term by 10 (`reward_weight` 0.1), and sets the entropy weight to 0.002. With a
    probability of 0.5 for each batch, it replaces the drawn positions by the expected context
    (semi-sampling). This function does not implement semi-sampling.

    Args:
        nll: Loss (B, T) of each target token, given the drawn positions. Its gradient is not used.
        alpha: Weights (B, T, S) from which the positions were drawn.
        drawn: One-hot vectors (B, T, S) of the drawn positions.
        counts: (B, T) bool, True = real target token, False = padding.
        baseline: Moving average of the loss of a token in earlier batches. The baseline does not
            depend on the drawn positions, so it does not change the mean of the gradient.
        reward_weight: Factor lambda_r on the REINFORCE term (section 4.1); 1 is unbiased.
        entropy_weight: Factor lambda_e on the entropy (section 4.1).

    Returns:
        A scalar tensor with the value 0 and the gradient above.
    """
    log_alpha = alpha.clamp(min=torch.finfo(alpha.dtype).tiny).log()
    reward = ((nll.detach() - baseline) * counts).flip(1).cumsum(1).flip(1)  # R_t - b_t
    log_p = (log_alpha * drawn.detach()).sum(-1)
    entropy = -(alpha * log_alpha).sum(-1)
    term = ((reward_weight * reward * log_p - entropy_weight * entropy) * counts).sum()
    return term - term.detach()


def marginal_cross_entropy(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    """Compute the sum over targets y of the exact marginal loss, -log sum_j alpha_j p(y | j).

    p(y | j) is the output distribution for attention to source position j only. The loss averages
    the output distributions of all source positions, not their contexts (Wu, Shapiro and Cotterell
    2018). The loss needs neither random draws nor a baseline. The decoder states must not
    depend on the attended positions. This excludes input feeding and a context in the recurrence.

    The logits are computed for one slice of the N S pairs of target and position at a time, so
    N x S x V logits are never in memory at once. A first pass computes p(y | j). A second pass
    computes the gradients, in which position j has its posterior probability as a factor. Positions
    with weight 0 are skipped.

    Args:
        log_alpha: Logarithms (N, S) of the attention weights; -inf marks positions that are not
            allowed.
        hidden: Input (N, S, D) of the output layer for attention to each position.
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: (N,) int64; targets equal to `IGNORE_INDEX` (-100) are ignored.

    Returns:
        A scalar in fp32, or in fp64 if the inputs are in fp64.
    """
    joint, _, used, rows, labels = _score_positions(log_alpha, hidden, weight, bias, targets)
    posterior = joint.detach().softmax(-1)[used]
    extra = linear_cross_entropy(rows, weight, bias, labels, weights=posterior, normalizer=1.0)
    return _summed_out(joint, targets).sum() + extra - extra.detach()


def marginal_token_scores(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the exact marginal loss of each target, and a predicted token for each target.

    The loss is that of `marginal_cross_entropy`, without the sum over the targets.

    Args:
        log_alpha: Logarithms (N, S) of the attention weights; -inf marks positions that are not
            allowed.
        hidden: Input (N, S, D) of the output layer for attention to each position.
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: (N,) int64; targets equal to `IGNORE_INDEX` (-100) are ignored.

    Returns:
        A tuple of the losses (N,), and the predicted token ids (N,) int64. The predicted token is
        the most likely token for attention to the source position with the largest weight. Where
        the target is `IGNORE_INDEX`, the loss and the predicted token are 0.
    """
    joint, predicted, *_ = _score_positions(log_alpha, hidden, weight, bias, targets)
    best = log_alpha.argmax(-1, keepdim=True)
    return _summed_out(joint, targets), predicted.gather(1, best).squeeze(1)


def mixed_log_probabilities(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Compute log sum_j alpha_j p(token | position j) for each token of the vocabulary.

    The logits of one source position are in memory at a time.

    Args:
        log_alpha: Logarithms (N, S) of the attention weights; -inf marks positions that are not
            allowed.
        hidden: Input (N, S, D) of the output layer for attention to each position.
        weight: Output matrix (V, D).
        bias: (V,) or None.

    Returns:
        Log-probabilities (N, V). Probabilities below the smallest normal number of the data type
        are replaced by that number.
    """
    alpha = log_alpha.exp()
    total = alpha.new_zeros(len(hidden), len(weight))
    for j in range(hidden.shape[1]):
        logits = F.linear(hidden[:, j], weight, bias)
        total = total + alpha[:, j, None] * logits.to(alpha.dtype).softmax(-1)
    return total.clamp(min=torch.finfo(total.dtype).tiny).log()


def _score_positions(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the joint log-probability of each target and each source position."""
    used = log_alpha.isfinite() & (targets != IGNORE_INDEX)[:, None]
    rows, labels = hidden[used], targets[:, None].expand_as(used)[used]
    nll, predicted = torch.zeros_like(log_alpha), torch.zeros_like(used, dtype=torch.long)
    scores, tokens = token_scores(rows, weight, bias, labels)
    nll[used], predicted[used] = scores.to(nll.dtype), tokens
    return log_alpha - nll, predicted, used, rows, labels


def _summed_out(joint: Tensor, targets: Tensor) -> Tensor:
    """Compute the marginal loss -log sum_j exp(joint_j) of each target."""
    return torch.where(targets != IGNORE_INDEX, -joint.logsumexp(-1), 0.0)
