"""Attention with a dense mask as on CUDA, compared with the formula; on a CPU with its kernels.

Also block masks: which are reused, and how often their search is compiled.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask

from fourfold.core.attention import attend, attention_backend
from fourfold.core.masks import Mask
from fourfold.kernels import cuda_attention
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
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION])
@pytest.mark.parametrize("has_bias", [False, True])
def test_heads_are_repeated_only_for_a_kernel_without_groups(
    q_len: int, kernel: SDPBackend, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []
    fused = F.scaled_dot_product_attention

    def noted(q: Tensor, k: Tensor, *rest: Any, **options: Any) -> Tensor:
        heads.append(k.shape[1])
        return fused(q, k, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, enable_gqa: kernel.value)
    q, k, v = torch.randn(2, 6, q_len, 16), *torch.randn(2, 2, 2, 40, 16)
    allowed = torch.rand(2, 1, q_len, 40) < 0.7
    allowed[1, :, 3] = False  # a query without keys
    bias = torch.randn(2, 6, q_len, 40) if has_bias else None
    given = allowed if bias is None else bias.masked_fill(~allowed, float("-inf"))
    y = attend_masked(q, k, v, given, allowed, 0.0, 0.3)
    with attention_backend("naive"):
        expected = attend(q, k, v, mask=allowed, bias=bias, scale=0.3)
    torch.testing.assert_close(y, expected)
    assert heads == [6 if kernel == SDPBackend.MATH else 2]


@pytest.mark.parametrize("q_len", [MAX_SHORT_QUERIES, MAX_SHORT_QUERIES + 1])
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_choice_of_the_kernel_compiles_without_graph_breaks(q_len: int, n_kv_heads: int) -> None:
    torch.compiler.reset()
    q, k, v = torch.randn(2, 2, q_len, 16), *torch.randn(2, 2, n_kv_heads, q_len, 16)
    mask = torch.rand(2, 1, q_len, q_len) < 0.5
    compiled = torch.compile(attend_masked, fullgraph=True, backend="aot_eager")
    expected = attend_masked(q, k, v, mask, mask, 0.0, None)
    torch.testing.assert_close(compiled(q, k, v, mask, mask, 0.0, None), expected)


def test_block_mask_is_made_once_for_the_tensors_of_a_batch() -> None:
    cpu = torch.device("cpu")
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])

    def made(length: int = 5, **options: Any) -> Any:
        return Mask(**options).lower(length, length, cpu, flex=True).mask

    first = made(causal=True, documents=documents)
    assert made(causal=True, documents=documents) is first
    assert made(window=3) is made(window=3)
    others = (
        made(documents=documents),
        made(causal=True, documents=documents, window=2),
        made(causal=True, documents=documents.clone()),
        made(causal=True, documents=documents, query_documents=documents),
        made(causal=True, keys=documents == 0),
        made(window=3, length=6),
    )
    assert all(other is not first for other in others)
    documents[0] = 0  # all five tokens are now one document
    after = made(causal=True, documents=documents)
    assert after is not first
    assert after.mask_mod(*torch.tensor([0, 0, 4, 0]))
    with torch.inference_mode():
        keys = torch.ones(2, 5, dtype=torch.bool)
        made(keys=keys)
        keys[:, 3:] = False
        assert not made(keys=keys).mask_mod(*torch.tensor([0, 0, 4, 4]))


@pytest.mark.slow
def test_search_for_blocks_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of packed documents differ in documents and length; a window is one more graph."""
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(create_block_mask, dynamic=True, backend=count)
    cpu = torch.device("cpu")
    for length in (300, 300, 500):
        documents = torch.randint(0, 3, (2, length)).sort(1).values
        for n_graphs, window in ((1, None), (2, 100)):
            mask = Mask(causal=True, documents=documents, window=window)
            expected = mask.lower(length, length, cpu, flex=True).mask
            cuda_attention._BLOCK_MASKS.clear()
            with monkeypatch.context() as patch:
                patch.setattr(cuda_attention, "_fast", lambda *_: compiled)
                found = mask.lower(length, length, cpu, flex=True).mask
            assert torch.equal(found.to_dense(), expected.to_dense())
            assert torch.equal(found.full_kv_num_blocks, expected.full_kv_num_blocks)
            assert len(graphs) >= n_graphs
    assert len(graphs) == 2
