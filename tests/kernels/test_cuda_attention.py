"""Attention with a dense mask as on CUDA, compared with the formula; on a CPU with its kernels."""

import pytest
import torch

from fourfold.core.attention import attend, attention_backend
from fourfold.kernels.cuda_attention import MAX_SHORT_QUERIES, attend_masked


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], ids=["cpu", "cuda"]
)
@pytest.mark.parametrize("q_len", [MAX_SHORT_QUERIES, MAX_SHORT_QUERIES + 1])
@pytest.mark.parametrize("masked", ["mask", "mask and bias", "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_without_keys_give_0_and_no_gradients(
    device: str, q_len: int, masked: str, dtype: torch.dtype
) -> None:
    q, k, v = (
        torch.randn(3, 2, n, 16, device=device, dtype=dtype, requires_grad=True)
        for n in (q_len, 40, 40)
    )
    allowed = torch.rand(3, 1, q_len, 40, device=device) < 0.7
    allowed[1] = False  # a source without tokens
    allowed[2, :, 5] = False  # a single query without keys
    bias = torch.randn(3, 2, q_len, 40, device=device, dtype=dtype)
    mask, terms = {
        "mask": (allowed, None),
        "mask and bias": (allowed, bias),
        "bias": (None, bias),
    }[masked]
    given = mask
    if terms is not None:
        given = terms if mask is None else terms.masked_fill(~mask, float("-inf"))
    assert given is not None
    y = attend_masked(q, k, v, given, mask, 0.0, None)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with attention_backend("naive"):
        wanted = attend(*exact, mask=mask, bias=None if terms is None else terms.double())
    ours = torch.autograd.grad(y.float().square().sum(), (q, k, v))
    theirs = torch.autograd.grad(wanted.square().sum(), exact)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, want in zip((y, *ours), (wanted, *theirs), strict=True):
        assert mine.isfinite().all()
        assert (mine.double() - want).norm() < tolerance * want.norm()
    if mask is not None:
        assert not y[1].any()
        assert not y[2, :, 5].any()
        assert not ours[0][1].any()


@pytest.mark.parametrize("q_len", [MAX_SHORT_QUERIES, MAX_SHORT_QUERIES + 1])
def test_choice_of_the_kernel_compiles_without_graph_breaks(q_len: int) -> None:
    torch.compiler.reset()
    q, k, v = torch.randn(3, 2, 2, q_len, 16)
    mask = torch.rand(2, 1, q_len, q_len) < 0.5
    compiled = torch.compile(attend_masked, fullgraph=True, backend="aot_eager")
    expected = attend_masked(q, k, v, mask, mask, 0.0, None)
    torch.testing.assert_close(compiled(q, k, v, mask, mask, 0.0, None), expected)
