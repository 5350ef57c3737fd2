"""Sliced cross-entropy, compared with the plain formula; classification and token scores."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fourfold.errors import InputError
from fourfold.kernels import cross_entropy
from fourfold.losses import (
    IGNORE_INDEX,
    LABEL_SMOOTHING_TYPES,
    linear_cross_entropy,
    smoothing_weights,
    token_scores,
)

N, D, V = 11, 5, 13


def problem(
    dtype: torch.dtype = torch.float64, bias: bool = True, ignored: tuple[int, ...] = (2, 7)
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    hidden, weight = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    targets = torch.randint(1, V, (N,))
    targets[list(ignored)] = IGNORE_INDEX
    own = torch.randn(V, dtype=dtype).requires_grad_() if bias else None
    return hidden.requires_grad_(), weight.requires_grad_(), own, targets


def plain(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    label_smoothing_type: str = "uniform",
    z_loss: float = 0.0,
    normalizer: float | None = None,
    logit_cap: float | None = None,
) -> Tensor:
    """Compute - sum of q log p + z_loss logsumexp^2 over the valid targets, token by token."""
    logits = F.linear(hidden, weight, bias)
    if logit_cap is not None:
        logits = logit_cap * torch.tanh(logits / logit_cap)
    log_p = logits.log_softmax(-1)
    total, count = torch.zeros((), dtype=log_p.dtype), 0
    for z, row, target in zip(logits, log_p, targets.tolist(), strict=True):
        if target == IGNORE_INDEX:
            continue
        count += 1
        total = total + z_loss * z.logsumexp(0) ** 2
        for word in range(V):
            if label_smoothing_type == "uniform":
                q = label_smoothing / V + (1 - label_smoothing) * (word == target)
            elif word == target:
                q = 1 - label_smoothing
            elif label_smoothing_type == "off_target":
                q = label_smoothing / (V - 1)
            else:
                q = 0 if word == 0 else label_smoothing / (V - 2)
            total = total - q * row[word]
    return total / (max(count, 1) if normalizer is None else normalizer)


def assert_equal(given: tuple[Any, ...], rtol: float = 1e-10, **options: Any) -> None:
    """Compare value and gradients with the plain formula."""
    leaves = [t for t in given[:3] if t is not None]
    for factor in (1.0, -2.5):  # the incoming gradient must be applied
        ours = linear_cross_entropy(*given, **options)
        theirs = plain(*given, **options)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
        pairs = zip(
            torch.autograd.grad(factor * ours, leaves),
            torch.autograd.grad(factor * theirs, leaves),
            strict=True,
        )
        for mine, wanted in pairs:
            torch.testing.assert_close(mine, wanted, rtol=rtol, atol=rtol)


@pytest.fixture(autouse=True, params=["CPU", "device"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the tiles of a CPU, and with those of other devices."""
    if request.param == "device":
        monkeypatch.setattr(cross_entropy, "runs_on_cpu", lambda x: False)


@pytest.mark.parametrize("label_smoothing_type", LABEL_SMOOTHING_TYPES)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalizer", [None, 1.0, 37.0])
def test_loss_equals_the_plain_formula(
    label_smoothing_type: str, epsilon: float, bias: bool, normalizer: float | None
) -> None:
    options = {
        "label_smoothing": epsilon,
        "label_smoothing_type": label_smoothing_type,
        "normalizer": normalizer,
    }
    assert_equal(problem(bias=bias), **options)


@pytest.mark.parametrize("label_smoothing_type", LABEL_SMOOTHING_TYPES)
@pytest.mark.parametrize("size", [1, 4 * V, 1000 * V])
def test_loss_with_a_limit_of_the_logits_equals_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, size: int, label_smoothing_type: str
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", size)
    given = problem()
    options = {"label_smoothing": 0.1, "label_smoothing_type": label_smoothing_type}
    assert_equal(given, logit_cap=1.5, z_loss=0.1, **options)
    weights = torch.rand(N, dtype=torch.float64)
    nll, prediction = token_scores(*given, logit_cap=1.5)
    logits = 1.5 * torch.tanh(F.linear(*given[:3]) / 1.5)
    expected = F.cross_entropy(logits, given[3], reduction="none", ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(nll, expected.detach())
    assert torch.equal(prediction, logits.argmax(-1))
    weighted = linear_cross_entropy(*given, weights=weights, normalizer=1.0, logit_cap=1.5)
    torch.testing.assert_close(weighted, (expected * weights).sum())
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given, logit_cap=1.5), plain(*given, logit_cap=1.5))
    with pytest.raises(InputError, match="targets must be from 0 to 12"):
        linear_cross_entropy(*given[:3], torch.full((N,), V), logit_cap=1.5)


@pytest.mark.parametrize("label_smoothing_type", LABEL_SMOOTHING_TYPES)
@pytest.mark.parametrize("shift", [0.0, -9.0])  # of the logsumexp, which is negative with -9
def test_z_loss_equals_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, label_smoothing_type: str, shift: float
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 4 * V)
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", 13)
    hidden, weight, bias, targets = problem()
    given = hidden, weight, (bias + shift).detach().requires_grad_(), targets
    for z_loss in (1e-4, 0.3):
        assert_equal(
            given, label_smoothing=0.1, label_smoothing_type=label_smoothing_type, z_loss=z_loss
        )


def test_z_loss_with_factors_and_transforms() -> None:
    hidden, weight, bias, targets = problem()
    factors = torch.rand(N, dtype=torch.float64, requires_grad=True)
    given = (hidden, weight, bias, targets)
    loss = linear_cross_entropy(*given, weights=factors, z_loss=0.2, normalizer=1.0)
    logits = F.linear(hidden, weight, bias)
    each = F.cross_entropy(logits, targets, reduction="none")
    each = each + 0.2 * logits.logsumexp(-1) ** 2 * (targets != IGNORE_INDEX)
    leaves = (hidden, weight, bias, factors)
    wanted = torch.autograd.grad((each * factors).sum(), leaves)
    for mine, other in zip(torch.autograd.grad(loss, leaves), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)

    def of_hidden(x: Tensor) -> Tensor:
        return linear_cross_entropy(x, weight, bias, targets, weights=factors, z_loss=0.2)

    count = (targets != IGNORE_INDEX).sum()
    mine = torch.func.grad(of_hidden)(hidden)
    torch.testing.assert_close(mine, wanted[0] / count, rtol=1e-10, atol=1e-10)


# In numbers: less than a row, one row, some that do not divide 11, all.
@pytest.mark.parametrize("size", [1, V, 2 * V + 3, 4 * V, 10 * V, 11 * V, 1000 * V])
@pytest.mark.parametrize("tile", [1, 13, 40, 1000])
@pytest.mark.parametrize("label_smoothing_type", LABEL_SMOOTHING_TYPES)
def test_loss_does_not_depend_on_slice_size(
    monkeypatch: pytest.MonkeyPatch, size: int, tile: int, label_smoothing_type: str
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", size)
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", tile)
    given = problem()
    assert_equal(given, label_smoothing=0.1, label_smoothing_type=label_smoothing_type)
    nll, prediction = token_scores(*given)
    logits = F.linear(*given[:3])
    expected = F.cross_entropy(logits, given[3], reduction="none", ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(nll, expected.detach())
    assert torch.equal(prediction, logits.argmax(-1))


@pytest.fixture
def exact_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slices on any device have the size of those on a CPU, without padding."""
    for name in ("DEVICE_FACTOR", "TOKEN_MULTIPLE", "VOCABULARY_MULTIPLE"):
        monkeypatch.setattr(cross_entropy, name, 1)


@pytest.mark.usefixtures("exact_slices")
def test_slices_have_equal_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 10 * V)
    hidden, weight, _, _ = problem()
    assert [len(hidden[rows]) for rows in cross_entropy.even_slices(hidden, weight)] == [6, 5]


@pytest.mark.usefixtures("exact_slices")
def test_peak_memory_is_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of the size of all logits is allocated."""

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.largest = max(self.largest, out.numel())
            return out

    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 50 * 40)
    hidden = torch.randn(400, 3, requires_grad=True)
    weight, targets = torch.randn(50, 3, requires_grad=True), torch.randint(50, (400,))
    with Sizes() as sizes:
        linear_cross_entropy(hidden, weight, None, targets, label_smoothing=0.1).backward()
        token_scores(hidden, weight, None, targets)
    assert 50 * 30 < sizes.largest <= 50 * 40


@pytest.mark.parametrize("label_smoothing_type", LABEL_SMOOTHING_TYPES)
def test_loss_of_ignored_targets_is_zero(label_smoothing_type: str) -> None:
    given = problem(ignored=tuple(range(N)))
    loss = linear_cross_entropy(
        *given, label_smoothing=0.1, label_smoothing_type=label_smoothing_type
    )
    assert loss.item() == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss, given[:3]))
    assert (token_scores(*given)[0] == 0).all()


def test_loss_of_no_tokens_is_zero() -> None:
    weight = torch.randn(V, D, requires_grad=True)
    hidden, targets = torch.empty(0, D, requires_grad=True), torch.empty(0, dtype=torch.long)
    loss = linear_cross_entropy(hidden, weight, None, targets)
    loss.backward()
    assert loss.item() == 0
    assert (weight.grad == 0).all()
    nll, prediction = token_scores(hidden, weight, None, targets)
    assert nll.shape == prediction.shape == (0,)


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, bias, targets = problem(torch.float32)
    big = (100 * hidden).detach().requires_grad_()
    loss = linear_cross_entropy(big, 10 * weight, bias, targets)
    exact = plain(big.double(), 10 * weight.double(), bias.double(), targets)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)
    assert torch.autograd.grad(loss, big)[0].isfinite().all()


@pytest.mark.parametrize(
    ("label_smoothing_type", "epsilon"),
    [("uniform", 0.0), ("uniform", 0.1), ("off_target_pad", 0.2)],
)
def test_gradcheck(label_smoothing_type: str, epsilon: float) -> None:
    hidden, weight, bias, targets = problem()
    assert torch.autograd.gradcheck(
        lambda *leaves: linear_cross_entropy(
            *leaves,
            targets,
            label_smoothing=epsilon,
            label_smoothing_type=label_smoothing_type,
            normalizer=3.0,
        ),
        (hidden, weight, bias),
    )


def test_normalizer_may_be_a_tensor() -> None:
    given = problem()
    total = linear_cross_entropy(*given, normalizer=1.0)
    for count in (torch.tensor(6), torch.tensor(6.0, dtype=torch.float64), torch.tensor([6])[0]):
        assert linear_cross_entropy(*given, normalizer=count).item() == pytest.approx(
            total.item() / 6
        )
    hidden, weight, bias, targets = problem(torch.float32)
    count = torch.tensor(6.0, dtype=torch.float64)
    loss = linear_cross_entropy(hidden, weight, bias, targets, normalizer=count)
    assert loss.dtype == torch.float32


def test_tied_embedding_gets_both_gradients() -> None:
    embedding, ids = nn.Embedding(V, D).double(), torch.randint(V, (N,))
    targets = torch.randint(V, (N,))
    grads = []
    for loss in (linear_cross_entropy, plain):
        embedding.zero_grad()
        loss(embedding(ids).tanh(), embedding.weight, None, targets).backward()
        grads.append(embedding.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-10)


def test_micro_batches_sum_to_the_batch() -> None:
    hidden, weight, bias, targets = problem()
    count = (targets != IGNORE_INDEX).sum()
    whole = torch.autograd.grad(linear_cross_entropy(hidden, weight, bias, targets), weight)[0]
    for rows in (slice(0, 4), slice(4, N)):
        part = linear_cross_entropy(hidden[rows], weight, bias, targets[rows], normalizer=count)
        part.backward()
    torch.testing.assert_close(weight.grad, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("smoothing", ["uniform", "off_target_pad"])
def test_frozen_inputs_get_no_gradient(
    monkeypatch: pytest.MonkeyPatch, smoothing: str, compiled: bool
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 3 * V)
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", 12)
    options: dict[str, Any] = {"label_smoothing": 0.1, "label_smoothing_type": smoothing}
    hidden, weight, bias, targets = problem()
    reference = plain(hidden, weight, bias, targets, **options)
    expected = torch.autograd.grad(reference, (hidden, weight, bias))
    leaves = (hidden, weight, bias)
    for chosen in itertools.product([True, False], repeat=3):
        if not any(chosen):
            continue
        given = [t.detach().requires_grad_(c) for t, c in zip(leaves, chosen, strict=True)]
        run: Any = linear_cross_entropy
        if compiled:
            torch._dynamo.reset()
            run = torch.compile(run, fullgraph=True, backend="aot_eager")
        run(*given, targets, **options).backward()
        for tensor, wanted, learns in zip(given, expected, chosen, strict=True):
            if learns:
                torch.testing.assert_close(tensor.grad, wanted)
            else:
                assert tensor.grad is None


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_of_a_frozen_output_matrix_is_not_computed(
    monkeypatch: pytest.MonkeyPatch, autocast: bool, compiled: bool
) -> None:
    """LoRA and frozen tokens train the layers below the output matrix only."""
    shapes: list[Any] = []

    class Recorded(cross_entropy._Gradients):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            shapes.append(None if self.weight is None else tuple(self.weight.shape))

    monkeypatch.setattr(cross_entropy, "_Gradients", Recorded)
    hidden, weight, bias, targets = problem(torch.float32)
    torch._dynamo.reset()
    run: Any = linear_cross_entropy
    if compiled:
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    for learns in (True, False):
        with torch.autocast("cpu", enabled=autocast):
            run(hidden, weight.detach().requires_grad_(learns), bias, targets).backward()
    (rows, width), frozen = shapes  # a GPU pads the vocabulary
    assert rows >= V
    assert width == D
    assert frozen is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_computes_no_gradients(
    monkeypatch: pytest.MonkeyPatch, mode: type[torch.no_grad]
) -> None:
    given = problem()
    expected = linear_cross_entropy(*given).item()
    monkeypatch.setattr(cross_entropy, "_Gradients", None)  # calling it would raise
    with mode():
        loss = linear_cross_entropy(*given)
    assert loss.item() == expected
    assert not loss.requires_grad


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tile", [4, 13, 1000])
def test_autocast_of_fp32_weights(monkeypatch: pytest.MonkeyPatch, bias: bool, tile: int) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 4 * V)
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", tile)
    hidden, weight, own, targets = problem(torch.float32, bias)
    leaves = [t for t in (hidden, weight, own) if t is not None]
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, own, targets, label_smoothing=0.1)
        logits = F.linear(hidden, weight, own)
        assert logits.dtype == torch.bfloat16
        theirs = F.cross_entropy(logits.float(), targets, label_smoothing=0.1)
        nll, _ = token_scores(hidden, weight, own, targets)
    assert ours.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=0)
    exact = plain(
        *(t.double() if t is not None else t for t in (hidden, weight, own)),
        targets,
        label_smoothing=0.1,
    )
    wanted = torch.autograd.grad(exact, leaves)
    for mine, want in zip(torch.autograd.grad(ours, leaves), wanted, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - want).norm() < 0.02 * want.norm()


def test_gradients_of_bf16_weights_are_summed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """257 equal rows: a sum in bf16 would stop at 256."""
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", V)
    hidden = torch.ones(257, D, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(V, D, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(V, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(257, dtype=torch.long)
    loss = linear_cross_entropy(hidden, weight, bias, targets, normalizer=1.0)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(257 * torch.tensor(V).log().item(), rel=1e-5)
    assert hidden.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.bfloat16
    expected = 257 * (1 / V - 1)
    assert weight.grad[0, 0].item() == pytest.approx(expected, rel=2**-8)
    assert bias.grad[0].item() == pytest.approx(expected, rel=2**-8)


def test_gradient_scale_is_not_rounded_to_bf16() -> None:
    """1/1021 in bf16 would be wrong by a quarter of a percent, in every gradient alike."""
    hidden, weight, _, targets = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        one = linear_cross_entropy(hidden, weight, None, targets, normalizer=1.0)
        many = linear_cross_entropy(hidden, weight, None, targets, normalizer=1021.0)
    for a, b in zip(
        torch.autograd.grad(one, (hidden, weight)),
        torch.autograd.grad(many, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, 1021 * b, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("low", [False, True])
def test_second_backward_pass_has_equal_gradients(low: bool) -> None:
    hidden, weight, bias, targets = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        loss = linear_cross_entropy(hidden, weight, bias, targets)
    first = torch.autograd.grad(3 * loss, weight, retain_graph=True)[0]
    kept = first.clone()
    for _ in range(2):
        second = torch.autograd.grad(loss, weight, retain_graph=True)[0]
        torch.testing.assert_close(first, 3 * second)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("tile", [4, 1000])
def test_gradient_of_a_confident_prediction_is_precise(
    monkeypatch: pytest.MonkeyPatch, tile: int
) -> None:
    """The difference of softmax 0.999 and target 1 is computed before rounding to bf16."""
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", tile * N)
    hidden, weight, _, targets = problem(torch.bfloat16, bias=False, ignored=())
    with torch.no_grad():
        weight.mul_(0.05)
        hidden.copy_(8 * F.one_hot(targets % D, D))
        weight[targets, targets % D] = 1.2
    exact_leaves = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    exact = plain(exact_leaves[0], exact_leaves[1], None, targets)
    ours = linear_cross_entropy(hidden, weight, None, targets)
    wanted = torch.autograd.grad(exact, exact_leaves)
    for mine, want in zip(torch.autograd.grad(ours, (hidden, weight)), wanted, strict=True):
        assert (mine.double() - want).norm() < 0.02 * want.norm()


def test_unlikely_target_does_not_underflow() -> None:
    hidden = torch.full((2, 1), 300.0, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([2, 0]), normalizer=1.0)
    assert loss.item() == pytest.approx(600.0)
    loss.backward()
    torch.testing.assert_close(hidden.grad, torch.tensor([[2.0], [0.0]]))
    torch.testing.assert_close(weight.grad, torch.tensor([[300.0], [0.0], [-300.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_token_scores_equal_the_plain_formula(dtype: torch.dtype) -> None:
    hidden, weight, bias, targets = problem(dtype)
    nll, prediction = token_scores(hidden, weight, bias, targets)
    logits = F.linear(hidden, weight, bias)
    assert nll.dtype == dtype
    assert not nll.requires_grad
    assert torch.equal(prediction, logits.argmax(-1))
    for i, target in enumerate(targets.tolist()):
        expected = 0.0 if target == IGNORE_INDEX else -logits[i].log_softmax(-1)[target].item()
        assert nll[i].item() == pytest.approx(expected, rel=1e-5)
    assert nll.sum().item() == pytest.approx(
        linear_cross_entropy(hidden, weight, bias, targets, normalizer=1.0).item(), rel=1e-5
    )


def test_smoothed_distribution_sums_to_one() -> None:
    for label_smoothing_type, others in (
        ("uniform", V - 1),
        ("off_target", V - 1),
        ("off_target_pad", V - 2),
    ):
        target, other = smoothing_weights(0.3, label_smoothing_type, V)
        assert target + others * other == pytest.approx(1.0)
    assert smoothing_weights(0.1, "uniform", 10) == pytest.approx((0.91, 0.01))
    with pytest.raises(
        InputError,
        match=r"label_smoothing_type must be one of uniform, .* got 'fairseq'",
    ):
        smoothing_weights(0.1, "fairseq", V)


@pytest.mark.cuda
@pytest.mark.parametrize("low", [False, True])
def test_loss_on_cuda_equals_the_plain_formula(monkeypatch: pytest.MonkeyPatch, low: bool) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 4 * V)
    hidden, weight, bias, targets = problem(torch.float32)
    leaves = [t.detach().cuda().requires_grad_() for t in (hidden, weight, bias)]
    with torch.autocast("cuda", torch.bfloat16, enabled=low):
        loss = linear_cross_entropy(*leaves, targets.cuda(), label_smoothing=0.1)
    assert loss.dtype == torch.float32
    exact = plain(*(t.double() for t in (hidden, weight, bias)), targets, label_smoothing=0.1)
    wanted = torch.autograd.grad(exact, (hidden, weight, bias))
    tolerance = 0.02 if low else 1e-5
    torch.testing.assert_close(loss.cpu().double(), exact, rtol=tolerance, atol=0)
    for mine, want in zip(torch.autograd.grad(loss, leaves), wanted, strict=True):
        assert (mine.cpu() - want).norm() < tolerance * want.norm()
