"""Top-k and top-p compared with loops, samples compared with their probabilities."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.generation.sampling import TokenSampler, keep_top, sample, uniform_per_prompt

EOS, PAD = 2, 0


def plain_top(logits: list[float], top_k: int | None, top_p: float | None) -> set[int]:
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    weights = [math.exp(logits[i]) for i in ranked]
    kept, reached = set(), 0.0
    for i, weight in zip(ranked, weights, strict=True):
        kept.add(i)
        reached += weight / sum(weights)
        if top_p is not None and reached >= top_p:
            break
    return kept


@pytest.mark.parametrize("top_k", [None, 1, 3, 12, 100])
@pytest.mark.parametrize("top_p", [None, 1e-9, 0.35, 0.9, 1.0])
def test_top_k_and_top_p_equal_a_loop(top_k: int | None, top_p: float | None) -> None:
    logits = torch.randn(50, 12, dtype=torch.float64) * 2
    logits[25:] = logits[25:].round()  # many ties
    kept = keep_top(logits, top_k, top_p)
    for row, before in zip(kept, logits, strict=True):
        stays = row.isfinite()
        assert set(stays.nonzero().flatten().tolist()) == plain_top(before.tolist(), top_k, top_p)
        assert torch.equal(row[stays], before[stays])


def test_top_p_keeps_the_token_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    for top_p, n_kept in [(0.4, 1), (0.5, 1), (0.51, 2), (0.76, 3), (0.99, 4)]:
        assert keep_top(logits, top_p=top_p).isfinite().sum() == n_kept


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    possible = expected > 0
    assert (counts[~possible] == 0).all()
    return ((counts - expected)[possible] ** 2 / expected[possible]).sum().item()


@pytest.mark.parametrize(
    "sampler",
    [
        TokenSampler(1.0),
        TokenSampler(0.6),
        TokenSampler(1.7, top_k=4),
        TokenSampler(1.0, top_p=0.8),
    ],
    ids=str,
)
def test_sample_frequencies_equal_probabilities(sampler: TokenSampler) -> None:
    logits = torch.randn(9) * 1.5
    logits[4] = -math.inf
    drawn = sampler(logits.expand(40_000, -1), torch.rand(40_000))
    counts = torch.bincount(drawn, minlength=9).float()
    scaled = keep_top(logits / sampler.temperature, sampler.top_k, sampler.top_p)
    assert chi_square(counts, scaled.softmax(-1)) < 31.8  # 8 degrees of freedom: 1 in 10,000


@pytest.mark.parametrize("temperature", [1e-20, 1e-39, 5e-324])
def test_tiny_temperature_takes_the_most_probable_token(temperature: float) -> None:
    logits = torch.tensor([[0.0, 3.0, -40.0], [2.0, 2.5, 1.0]])
    draws = torch.tensor([0.0, 0.999])
    assert TokenSampler(temperature)(logits, draws).tolist() == [1, 1]


def test_extreme_draws_select_possible_tokens() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 1.0, 0.3, -math.inf]])
    for draw, token in [(0.0, 1), (1.0 - 2**-24, 3), (1.0, 3)]:
        assert TokenSampler(1.0)(logits, torch.tensor([draw])).tolist() == [token]


def test_low_temperature_is_greedy_search() -> None:
    logits, draws = torch.randn(200, 30) * 3, torch.rand(200)
    greedy = TokenSampler()(logits, draws)
    assert torch.equal(greedy, logits.argmax(-1))
    for sampler in (TokenSampler(1e-30), TokenSampler(5.0, top_k=1), TokenSampler(5.0, top_p=1e-6)):
        assert torch.equal(sampler(logits, draws), greedy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be at least 0 and finite, got nan"),
        ({"temperature": math.inf}, "temperature must be .* finite, got inf"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
    ],
)
def test_invalid_sampling_options_are_rejected(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TokenSampler(**arguments)


def test_draws_depend_on_the_prompt_only() -> None:
    ids = torch.tensor([[5, 6, 0], [0, 5, 6], [7, 8, 9], [5, 6, 5]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1]]).bool()
    draws = uniform_per_prompt(ids, mask, 20, seed=1)
    assert draws.unique().numel() == draws.numel()  # copies of a prompt included
    alone = uniform_per_prompt(torch.tensor([[5, 6]]), torch.ones(1, 2).bool(), 30, seed=1)
    assert torch.equal(alone[0, :20], draws[0])
    turned = uniform_per_prompt(ids.flip(0), mask.flip(0), 20, seed=1)
    assert torch.equal(turned[[0, 1, 2]], draws[[3, 2, 0]])  # the first copy always has the same
    assert not torch.equal(uniform_per_prompt(ids, mask, 20, seed=2), draws)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_draws_do_not_depend_on_the_default_dtype(kind: torch.dtype) -> None:
    ids, mask = torch.tensor([[5, 6]]), torch.ones(1, 2).bool()
    usual, before = uniform_per_prompt(ids, mask, 50, seed=1), torch.get_default_dtype()
    try:
        torch.set_default_dtype(kind)
        assert torch.equal(uniform_per_prompt(ids, mask, 50, seed=1), usual)
    finally:
        torch.set_default_dtype(before)


def test_without_a_seed_draws_come_from_the_global_generator() -> None:
    ids, mask = torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1).bool()
    torch.manual_seed(3)
    first, second = (uniform_per_prompt(ids, mask, 4, None) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(uniform_per_prompt(ids, mask, 4, None), first)
    assert not torch.equal(first, second)


def test_rows_leave_the_batch_at_eos_or_their_limit(table: Callable) -> None:
    toy = table(4, 12, 5)
    limit = torch.tensor([12, 12, 3, 12])
    toy.logits[0, 4, :, :, EOS] = 50.0  # the first row ends with its fifth token
    toy.logits[:, :4, :, :, EOS] = toy.logits[1:, :, :, :, EOS] = -50.0
    toy.logits[3, 6, :, :, EOS] = 90.0
    prompt = torch.ones(4, 1, dtype=torch.long)
    out = sample(toy, prompt, limit, TokenSampler(), torch.zeros(4, 12), [EOS], PAD)
    assert toy.calls == [4] * 3 + [3] * 2 + [2] * 2 + [1] * 5
    assert out.shape == (4, 12)
    for row, length in enumerate([5, 12, 3, 7]):
        tokens: tuple[int, ...] = (1,)
        for _ in range(length):
            log_p = toy.next_log_p(row, tokens)
            tokens = (*tokens, log_p.index(max(log_p)))
        assert out[row].tolist() == [*tokens[1:], *[PAD] * (12 - length)]


def test_columns_end_with_the_longest_row(table: Callable) -> None:
    toy = table(2, 9, 5)
    toy.logits[:, 3:, :, :, EOS] = 50.0
    toy.logits[:, :3, :, :, EOS] = -50.0
    limit, prompt = torch.tensor([9, 9]), torch.ones(2, 1, dtype=torch.long)
    out = sample(toy, prompt, limit, TokenSampler(), torch.zeros(2, 9), [EOS], PAD)
    assert out.shape == (2, 4)
    assert (out[:, 3] == EOS).all()
