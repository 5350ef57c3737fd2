"""Losses of hard attention: REINFORCE (Xu et al. 2015) and the exact marginal (Wu et al. 2018).

The exact losses take the logarithms `log_alpha` (N, S) of the attention weights, -inf at positions
that are not allowed; the input `hidden` (N, S, D) of the output layer for attention to each
position; its matrix `weight` (V, D) and `bias` (V,) or None; and `targets` (N,) int64, of which
those equal to `IGNORE_INDEX` (-100) are ignored.
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
    et al. 2015, section 4.1), minus `entropy_weight` times the entropy of alpha. For one draw, the
    gradient of the sum of `nll` plus this term is an unbiased estimate of the gradient of the
    objective. The gradient of this term is

        sum_t reward_weight (R_t - b_t) grad log alpha_t[drawn_t] - entropy_weight grad H(alpha_t).

    R_t is the sum of the losses of the tokens from t on, since only these depend on the position
    drawn for token t, and b_t is `baseline` times their number. The paper uses the loss of all T
    tokens for each t, whose mean gradient is the same, with a larger variance. The released code
    uses the mean loss of the tokens, `reward_weight` 0.1, `entropy_weight` 0.002 and semi-sampling,
    which is not implemented here.

    Args:
        nll: Loss (B, T) of each target token, given the drawn positions. Its gradient is not used.
        alpha: Weights (B, T, S) from which the positions were drawn.
        drawn: One-hot vectors (B, T, S) of the drawn positions.
        counts: (B, T) bool, True = real target token, False = padding.
        baseline: Moving average of the loss of a token in earlier batches.
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

    p(y | j) is the output distribution for attention to source position j only (Wu, Shapiro and
    Cotterell 2018). The loss needs neither random draws nor a baseline. The decoder states must not
    depend on the attended positions, which excludes input feeding and a context in the recurrence.
    The logits are computed for one slice of the N S pairs at a time: a first pass computes p(y |
    j), a second one the gradients, in which position j has its posterior probability as a factor.
    """
    joint, _, used, rows, labels = _score_positions(log_alpha, hidden, weight, bias, targets)
    posterior = joint.detach().softmax(-1)[used]
    extra = linear_cross_entropy(rows, weight, bias, labels, weights=posterior, normalizer=1.0)
    return _summed_out(joint, targets).sum() + extra - extra.detach()


def marginal_token_scores(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the exact marginal loss (N,) and a predicted token (N,) of each target.

    The predicted token is the most likely one for attention to the position with the largest
    weight. Where the target is `IGNORE_INDEX`, both are 0.
    """
    joint, predicted, *_ = _score_positions(log_alpha, hidden, weight, bias, targets)
    best = log_alpha.argmax(-1, keepdim=True)
    return _summed_out(joint, targets), predicted.gather(1, best).squeeze(1)


def mixed_log_probabilities(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Compute log sum_j alpha_j p(token | position j), (N, V), position by position.

    Probabilities below the smallest normal number of the data type are replaced by that number.
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
