"""Attention by matrix products: values and gradients compared with the naive backend in fp64."""

import pytest
import torch
from torch import Tensor

from fourfold.core.attention import attend, attention_backend, products_are_faster
from fourfold.kernels import cpu_attention
from fourfold.kernels.cpu_attention import attend_by_products

B, H, Q, K, D = 2, 3, 7, 9, 4


def inputs(q_len: int = Q, k_len: int = K) -> list[Tensor]:
    sizes = ((q_len, D), (k_len, D), (k_len, D + 1))
    return [torch.randn(B, H, *size, dtype=torch.float64).requires_grad_() for size in sizes]


@pytest.fixture(params=["one slice", "many slices", "recomputed weights"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "one slice":
        monkeypatch.setattr(cpu_attention, "CAUSAL_SLICE", 2)
        monkeypatch.setattr(cpu_attention, "MAX_SLICE_SCORES", 1)
    if request.param == "recomputed weights":
        monkeypatch.setattr(cpu_attention, "MAX_SAVED_WEIGHTS", 0)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize(
    "mask", [None, (Q, K), (B, 1, 1, K), (B, 1, Q, K), (1, H, Q, K), (B, 1, Q, 1)]
)
@pytest.mark.parametrize("bias", [None, (Q, K), (H, 1, K), (1, H, Q, K), (B, 1, Q, K)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_products_equal_the_naive_backend(
    mask: tuple[int, ...] | None, bias: tuple[int, ...] | None, scale: float | None
) -> None:
    leaves = inputs()
    allowed = None if mask is None else torch.rand(mask) < 0.6
    if bias is not None:
        leaves.append(torch.randn(bias, dtype=torch.float64).requires_grad_())
    added = leaves[3] if bias is not None else None
    ours = attend_by_products(*leaves[:3], allowed, added, False, scale, 0.0, None)
    with attention_backend("naive"):
        theirs = attend(*leaves[:3], mask=allowed, bias=added, scale=scale)
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn_like(ours)
    for mine, wanted in zip(
        torch.autograd.grad(ours, leaves, grad),
        torch.autograd.grad(theirs, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_causal_products_equal_the_naive_backend(length: int) -> None:
    leaves = inputs(length, length)
    ours = attend_by_products(*leaves, None, None, True, None, 0.0, None)
    with attention_backend("naive"):
        theirs = attend(*leaves, causal=True)
    torch.testing.assert_close(ours, theirs)
    for mine, wanted in zip(
        torch.autograd.grad(ours.square().sum(), leaves),
        torch.autograd.grad(theirs.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_with_dropout(causal: bool) -> None:
    leaves = inputs(Q, Q)

    def drop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend_by_products(q, k, v, None, None, causal, None, 0.4, None)

    assert not torch.equal(drop(*leaves), attend(*leaves, causal=causal))
    assert torch.autograd.gradcheck(drop, leaves)


def test_dropped_share_equals_p() -> None:
    q = torch.zeros(1, 1, 200, D).bfloat16().requires_grad_()
    v = torch.eye(200)[None, None].bfloat16().requires_grad_()
    weights = attend_by_products(q, q, v, None, None, False, None, 0.3, None)  # 1/200 each
    dropped = (weights == 0).float().mean().item()
    assert dropped == pytest.approx(0.3, abs=0.01)
    assert weights.float().sum(-1).mean().item() == pytest.approx(1.0, abs=0.02)


def test_saved_memory_grows_linearly_with_length() -> None:
    sizes = []
    for length in (2048, 4096):
        leaves = [torch.randn(1, 1, length, 8).bfloat16().requires_grad_() for _ in range(3)]
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, saved=saved: (saved.append(x.numel()), x)[1], lambda x: x
        ):
            attend_by_products(*leaves, None, None, True, None, 0.0, None).sum().backward()
        sizes.append(sum(saved))
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_one_query_and_keys_in_a_larger_buffer(dtype: torch.dtype, masked: bool) -> None:
    """Keys and values of a cache are part of a buffer with a larger capacity."""
    q = torch.randn(B, H, 1, D, dtype=dtype)
    k, v = (torch.randn(B, H, 2 * K, D, dtype=dtype)[:, :, :K] for _ in range(2))
    mask = torch.rand(B, 1, 1, K) > 0.3 if masked else None
    with torch.no_grad():
        found = attend_by_products(q, k, v, mask, None, False, None, 0.0, None)
        with attention_backend("naive"):
            wanted = attend(q.double(), k.double(), v.double(), mask=mask)
    torch.testing.assert_close(
        found.double(),
        wanted,
        rtol=0,
        atol={torch.bfloat16: 2e-2, torch.float32: 1e-5}.get(dtype, 1e-12),
    )


def test_evaluation_in_bf16_uses_products_for_many_scores() -> None:
    few, many = (torch.empty(rows, 4, 32, 8, dtype=torch.bfloat16) for rows in (4, 8))
    assert products_are_faster(many, 32, 0.0)
    assert not products_are_faster(few, 32, 0.0)
    assert not products_are_faster(many.float(), 32, 0.0)
