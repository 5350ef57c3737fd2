"""Losses of hard attention, compared with the enumeration of all positions."""

import itertools

import pytest
import torch
from torch import Tensor

from fourfold.losses import IGNORE_INDEX
from fourfold.models.recurrent.hard_attention import (
    log_weights,
    marginal_cross_entropy,
    marginal_token_scores,
    mixed_log_probabilities,
    reinforce_term,
)

S, V, T, N_DRAWS = 3, 4, 2, 100_000
ENTROPY_WEIGHT = 0.3


class Toy:
    """Two target tokens whose distributions depend on all positions drawn so far."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.scores = torch.randn(T, S, dtype=torch.float64)
        table = 2 * torch.randn(S, S, V, dtype=torch.float64).log_softmax(-1)
        self.first = -table[:, 0].log_softmax(-1)[:, 1]  # loss of the first token by position
        self.second = -table.log_softmax(-1)[..., 2]  # of the second one by both positions

    def nll(self, j: Tensor, k: Tensor) -> Tensor:
        return torch.stack([self.first[j], self.second[j, k]], dim=-1)

    def exact_gradient(self) -> Tensor:
        """Differentiate the mean loss over all pairs of positions, minus the weighted entropy."""
        scores = self.scores.clone().requires_grad_()
        alpha = scores.softmax(-1)
        bound = torch.zeros((), dtype=torch.float64)
        for j, k in itertools.product(range(S), repeat=2):
            bound = bound + alpha[0, j] * alpha[1, k] * (self.first[j] + self.second[j, k])
        entropy = -(alpha * alpha.log()).sum()
        return torch.autograd.grad(bound - ENTROPY_WEIGHT * entropy, scores)[0]

    def sampled_gradients(self, baseline: float) -> Tensor:
        """Return the gradients (draws, T, S) of `N_DRAWS` independent draws."""
        torch.manual_seed(1)
        scores = self.scores.repeat(N_DRAWS, 1, 1).requires_grad_()
        alpha = scores.softmax(-1)
        chosen = torch.multinomial(self.scores.softmax(-1), N_DRAWS, replacement=True).T  # (n, T)
        drawn = torch.nn.functional.one_hot(chosen, S).double()
        nll = self.nll(*chosen.T)
        counts = torch.ones(N_DRAWS, T, dtype=torch.bool)
        loss = reinforce_term(
            nll, alpha, drawn, counts, baseline=baseline, entropy_weight=ENTROPY_WEIGHT
        )
        assert loss == 0
        return torch.autograd.grad(loss, scores)[0]


def test_mean_reinforce_gradient_equals_the_enumerated_one() -> None:
    toy = Toy()
    exact = toy.exact_gradient()
    mean_loss = float(torch.stack([toy.first.mean(), toy.second.mean()]).mean())
    variances = []
    for baseline in (0.0, mean_loss):
        gradients = toy.sampled_gradients(baseline)
        error = (gradients.mean(0) - exact).abs()
        assert (error <= 3 * gradients.std(0) / N_DRAWS**0.5).all()
        variances.append(gradients.var(0))
    assert variances[1].sum() < 0.5 * variances[0].sum()
    assert exact.abs().min() > 0.01


def test_reinforce_ignores_padding() -> None:
    torch.manual_seed(0)
    nll, scores = torch.rand(2, 4), torch.randn(2, 4, S)
    drawn = torch.eye(S)[torch.randint(S, (2, 4))]
    counts = torch.tensor([[True] * 4, [True, True, False, False]])

    def gradient(rows: slice, columns: slice, counts: Tensor) -> Tensor:
        leaf = scores.clone().requires_grad_()
        parts = nll[rows, columns], leaf.softmax(-1)[rows, columns], drawn[rows, columns]
        loss = reinforce_term(*parts, counts, baseline=0.7, entropy_weight=0.1)
        return torch.autograd.grad(loss, leaf)[0]

    padded = gradient(slice(2), slice(4), counts)
    assert not padded[1, 2:].any()
    torch.testing.assert_close(padded[1], gradient(slice(1, 2), slice(2), counts[1:, :2])[1])


def marginal_by_loops(
    log_alpha: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for n in range(len(targets)):
        if targets[n] == IGNORE_INDEX:
            continue
        p = sum(
            log_alpha[n, j].exp() * (weight @ hidden[n, j] + bias).softmax(-1)[targets[n]]
            for j in range(log_alpha.shape[1])
            if log_alpha[n, j] > -torch.inf
        )
        total = total - torch.as_tensor(p).log()
    return total


@pytest.mark.parametrize("slice_logits", [2**26, 8])
def test_marginal_and_its_gradients_match_loops(
    slice_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fourfold.kernels.cross_entropy.MAX_SLICE_LOGITS", slice_logits)
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((5, S), (5, S, 6), (V, 6), (V,))
    ]
    targets = torch.tensor([0, 3, IGNORE_INDEX, 1, 3])
    mask = torch.tensor([[True, True, True]] * 3 + [[True, True, False], [False, True, False]])

    def run(loss: object) -> list[Tensor]:
        scores, *rest = leaves
        alpha = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        value = loss(log_weights(alpha), *rest, targets)  # type: ignore[operator]
        return [value, *torch.autograd.grad(value, leaves)]

    torch.testing.assert_close(run(marginal_cross_entropy), run(marginal_by_loops))
    scores, hidden, weight, bias = (leaf.detach() for leaf in leaves)
    log_alpha = log_weights(scores.masked_fill(~mask, -torch.inf).softmax(-1))
    nll, predicted = marginal_token_scores(log_alpha, hidden, weight, bias, targets)
    for n in range(5):
        one = slice(n, n + 1)
        expected = marginal_by_loops(log_alpha[one], hidden[one], weight, bias, targets[one])
        torch.testing.assert_close(nll[n], expected)
        mixed = mixed_log_probabilities(log_alpha[one], hidden[one], weight, bias)
        assert mixed.exp().sum() == pytest.approx(1.0)
        if targets[n] >= 0:
            torch.testing.assert_close(-mixed[0, targets[n]], expected)
        best = (weight @ hidden[n, log_alpha[n].argmax()] + bias).argmax()
        assert predicted[n] == (best if targets[n] >= 0 else 0)


def test_marginal_is_at_most_the_bound_of_sampled_positions() -> None:
    torch.manual_seed(0)
    alpha, hidden, weight = torch.randn(7, S).softmax(-1), torch.randn(7, S, 5), torch.randn(V, 5)
    targets = torch.randint(V, (7,))
    log_p = (hidden @ weight.T).log_softmax(-1)[torch.arange(7), :, targets]  # (7, S)
    marginal = marginal_cross_entropy(alpha.log(), hidden, weight, None, targets)
    bound = -(alpha * log_p).sum()
    assert float(marginal) < float(bound)
