"""Attention functions of recurrent models, compared with loops over queries and positions."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fourfold.core.attention import attention_backend
from fourfold.errors import InputError
from fourfold.models.recurrent.attention import RecurrentAttention, Score, Weights

B, T, S, Q, A, D = 3, 4, 7, 5, 6, 2
SCORES = get_args(Score)
WEIGHTS = get_args(Weights)
MASK = torch.tensor([[True] * 7, [True] * 5 + [False] * 2, [False] * 4 + [True] * 3])


def build(score: str, weights: str = "softmax", **options: Any) -> RecurrentAttention:
    torch.manual_seed(0)
    memory_size = Q if score in ("dot", "scaled") else 8
    options = {"d_attn": A, "window": D, "max_source_len": 9, **options}
    attention = RecurrentAttention(Q, memory_size, score=score, weights=weights, **options)  # type: ignore[arg-type]
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    return attention.double().eval()


def inputs(attention: RecurrentAttention, beams: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    memory_size = Q if attention.score in ("dot", "scaled") else 8
    query = torch.randn(B * beams, T, Q, dtype=torch.float64)
    return query, torch.randn(B, S, memory_size, dtype=torch.float64)


def run(
    attention: RecurrentAttention, query: Tensor, memory: Tensor, mask: Any, **options: Any
) -> Any:
    return attention(query, memory, mask, projected=attention.project(memory), **options)


def score_of(attention: RecurrentAttention, q: Tensor, h: Tensor, s: int) -> Tensor:
    """Compute the score of one query (Q,) and one encoder state (M,) at position s from 1."""
    if attention.score == "dot":
        return q @ h
    if attention.score == "scaled":
        return q @ h / math.sqrt(Q)
    w_a = attention.w_a.weight
    if attention.score == "general":
        return q @ (w_a @ h)
    if attention.score == "location":
        return (w_a @ q)[s - 1]
    v_a = attention.v_a.weight[0]
    if attention.score == "additive":
        return v_a @ torch.tanh(w_a @ q + attention.u_a.weight @ h)
    whole = torch.cat([w_a, attention.u_a.weight], dim=1)
    return v_a @ torch.tanh(whole @ torch.cat([q, h]))


def by_definition(
    attention: RecurrentAttention, query: Tensor, memory: Tensor, mask: Tensor, step: int = 0
) -> tuple[Tensor, Tensor]:
    """Compute contexts and weights one query and one position at a time."""
    weights = query.new_zeros(len(query), query.shape[1], memory.shape[1])
    for b in range(len(query)):
        n = b * len(memory) // len(query)
        columns = [j for j in range(memory.shape[1]) if mask[n, j]]
        for t in range(query.shape[1]):
            q = query[b, t]
            scores = {s: score_of(attention, q, memory[n, j], s) for s, j in enumerate(columns, 1)}
            factors = dict.fromkeys(scores, 1.0)
            p = None
            if attention.weighting == "local_m":
                p = min(step + t + 1, len(columns))
            if attention.weighting == "local_p":
                position = attention.v_p.weight[0] @ torch.tanh(attention.w_p.weight @ q)
                p = len(columns) * torch.sigmoid(position).item()
                factors = {s: math.exp(-((s - p) ** 2) / (2 * (D / 2) ** 2)) for s in scores}
            if p is not None:
                scores = {s: e for s, e in scores.items() if abs(s - math.floor(p)) <= D}
            if attention.weighting.startswith("hard"):
                best = max(scores, key=lambda s: scores[s].item())
                scores = {best: scores[best]}
            total = sum(e.exp() for e in scores.values())
            for s, e in scores.items():
                weights[b, t, columns[s - 1]] = e.exp() / total * factors[s]
    sources = memory.repeat_interleave(len(query) // len(memory), dim=0)
    return weights @ sources, weights


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("score", SCORES)
def test_scores_and_weights_match_loops(score: str, weights: str) -> None:
    attention = build(score, weights)
    query, memory = inputs(attention, beams=2)
    context, alpha = run(attention, query, memory, MASK, step=1)
    expected_context, expected = by_definition(attention, query, memory, MASK, step=1)
    torch.testing.assert_close(alpha, expected)
    torch.testing.assert_close(context, expected_context)
    assert (expected > 0).any(-1).all()
    if weights == "local_p":
        assert (alpha.sum(-1) < 1).all()


class Projecting(nn.Module):
    """Attention whose forward pass includes the projection of the memory."""

    def __init__(self, attention: RecurrentAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        context: Tensor = run(self.attention, query, memory, mask)[0]
        return context


@pytest.mark.parametrize("weights", ["softmax", "local_m", "local_p"])
@pytest.mark.parametrize("score", SCORES)
def test_gradients_match_finite_differences(score: str, weights: str) -> None:
    module = Projecting(build(score, weights))
    query, memory = inputs(module.attention)
    mask = torch.cat([MASK[1:2], torch.zeros(1, S, dtype=torch.bool)])  # the second row has no key
    query, memory = query[1:, :2].requires_grad_(), memory[1:].requires_grad_()
    names = [name for name, _ in module.named_parameters()]

    def context(query: Tensor, memory: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        result: Tensor = functional_call(module, parameters, (query, memory, mask))
        return result

    assert torch.autograd.gradcheck(context, (query, memory, *module.parameters()))


def test_predicted_position_gets_a_gradient() -> None:
    attention = build("dot", "local_p")
    query, memory = inputs(attention)
    run(attention, query, memory, MASK)[0].square().sum().backward()
    for parameter in (attention.v_p.weight, attention.w_p.weight):
        assert parameter.grad is not None
        assert parameter.grad.abs().min() > 0


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("score", ["dot", "general", "scaled"])
def test_attend_gives_the_contexts_of_the_weights(score: str, masked: bool) -> None:
    attention = build(score)
    query, memory = inputs(attention, beams=3)
    mask = MASK.clone() if masked else None
    if mask is not None:
        mask[2] = False
    expected, _ = run(attention, query, memory, mask)
    for backend in ("auto", "naive", "sdpa"):
        with attention_backend(backend):
            context, weights = run(attention, query, memory, mask, need_weights=False)
        assert weights is None
        torch.testing.assert_close(context, expected)
    if masked:
        assert not expected[-3:].any()  # a source without a real position


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("score", SCORES)
def test_padding_changes_no_result(score: str, weights: str) -> None:
    attention = build(score, weights).float()
    query, memory = (x.float() for x in inputs(attention))
    mask = MASK.clone()
    mask[0] = False
    context, alpha = run(attention, query, memory, mask)
    assert not context[0].any()
    assert not alpha[0].any()
    assert not alpha.masked_select(~mask[:, None]).any()
    for row in (1, 2):
        real = mask[row]
        single, single_alpha = run(
            attention, query[row : row + 1], memory[row : row + 1, real], None
        )
        torch.testing.assert_close(context[row], single[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(alpha[row][:, real], single_alpha[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_beams_share_the_memory_of_their_source(score: str) -> None:
    attention = build(score, "local_m")
    query, memory = inputs(attention, beams=2)
    step = torch.tensor([0, 1, 2, 0, 4, 1])
    shared = run(attention, query, memory, MASK, step=step)
    repeated = [x.repeat_interleave(2, dim=0) for x in (memory, MASK)]
    for given in ([memory, repeated[1]], repeated):
        for actual, expected in zip(run(attention, query, *given, step=step), shared, strict=True):
            torch.testing.assert_close(actual, expected)


def test_queries_one_by_one_equal_all_queries_at_once() -> None:
    for weights in ("softmax", "local_m", "local_p"):
        attention = build("general", weights)
        query, memory = inputs(attention)
        context, _ = run(attention, query, memory, MASK)
        for t in range(T):
            step, _ = run(attention, query[:, t : t + 1], memory, MASK, step=t)
            torch.testing.assert_close(step, context[:, t : t + 1])


def test_concat_with_a_frozen_identity_equals_the_matlab_form() -> None:
    torch.manual_seed(0)
    attention = RecurrentAttention(Q, A, score="concat", d_attn=A)
    attention.u_a.weight.requires_grad_(False).copy_(torch.eye(A))
    query, memory = torch.randn(B, T, Q), torch.randn(B, S, A)
    _, alpha = run(attention, query, memory, MASK)
    w_a, v_a = attention.w_a.weight, attention.v_a.weight[0]
    scores = torch.tanh((query @ w_a.T)[:, :, None] + memory[:, None]) @ v_a
    expected = scores.masked_fill(~MASK[:, None], -math.inf).softmax(-1)
    torch.testing.assert_close(alpha, expected)


@pytest.mark.parametrize("weights", ["hard_sample", "hard_gumbel"])
def test_drawn_positions_have_the_frequencies_of_the_softmax(weights: str) -> None:
    attention = build("general", weights)
    query, memory = inputs(attention)
    alpha, *_ = attention.probabilities(query, MASK, projected=attention.project(memory))
    draws = attention.train().select(alpha.expand(20_000, *alpha.shape))
    assert set(draws.unique().tolist()) == {0.0, 1.0} or weights == "hard_gumbel"
    torch.testing.assert_close(draws.sum(-1), torch.ones_like(draws[..., 0]))
    assert not draws[:, 1, :, 5:].any()  # padding is never drawn
    error = (draws.mean(0) - alpha).abs()
    assert (error <= 4.5 * (alpha * (1 - alpha) / len(draws)).sqrt() + 1e-12).all()


def test_draws_depend_on_the_generator_in_training_only() -> None:
    for weights in ("hard_sample", "hard_gumbel"):
        attention = build("general", weights)
        query, memory = inputs(attention)
        modes = {}
        for training in (True, False):
            attention.train(training)
            results = []
            for seed in (0, 0, 1):
                torch.manual_seed(seed)
                results.append(run(attention, query, memory, MASK)[1])
            torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
            modes[training] = torch.equal(results[0], results[2])
        assert modes == {True: False, False: True}


def test_gumbel_gradient_is_that_of_the_soft_sample() -> None:
    attention = build("general", "hard_gumbel", temperature=0.7).train()
    query, memory = inputs(attention)
    query.requires_grad_()
    projected = attention.project(memory)
    factor = torch.randn(B, T, S, dtype=torch.float64)
    torch.manual_seed(2)
    _, chosen = attention(query, memory, MASK, projected=projected)
    actual = torch.autograd.grad((chosen * factor).sum(), query)[0]
    torch.manual_seed(2)
    noise = -torch.empty(B, T, S, dtype=torch.float64).exponential_().log()
    scores = (query @ projected.mT).masked_fill(~MASK[:, None], -math.inf)
    soft = ((scores + noise) / 0.7).softmax(-1)
    expected = torch.autograd.grad((soft * factor).sum(), query)[0]
    torch.testing.assert_close(actual, expected)
    assert torch.equal(chosen.argmax(-1), soft.argmax(-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "location"}, "max_len must be given for the score location, got None"),
        ({"score": "dot"}, r"score must be general, .* got dot, which needs .* \(5 and 8\)"),
    ],
)
def test_bad_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecurrentAttention(5, 8, **options)


def test_location_rejects_a_longer_source_but_not_longer_padding() -> None:
    attention = build("location", max_source_len=5)
    query, memory = inputs(attention)
    mask = MASK.clone()
    mask[0, 5:] = False
    run(attention, query, memory, mask)
    with pytest.raises(InputError, match=r"max_source_len is 5, .* but a source has 7 tokens"):
        run(attention, query, memory, MASK)
    with pytest.raises(InputError, match="a source has 7 tokens"):
        run(attention, query, memory, None)


def test_recording_returns_the_weights_of_each_call() -> None:
    attention = build("general", "hard_argmax")
    query, memory = inputs(attention)
    with attention.recording() as records:
        _, first = run(attention, query, memory, MASK)
        run(attention, query[:, :1], memory, MASK, need_weights=False)
    run(attention, query, memory, MASK)
    assert [record[0].shape for record in records] == [(B, T, S), (B, 1, S)]
    assert torch.equal(records[0][1], first)
    torch.testing.assert_close(records[0][0].sum(-1), torch.ones(B, T, dtype=torch.float64))
