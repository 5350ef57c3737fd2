"""Attention on every backend, compared with explicit loops, forward and backward."""

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from fourfold.analysis.attention_maps import mean_maps
from fourfold.core.attention import (
    BACKENDS,
    Attention,
    attend,
    attention_backend,
    attention_weights,
    lower_mask,
)
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import LoweredMask, Mask
from fourfold.core.rotary import rotate, rotation
from fourfold.errors import InputError
from fourfold.models import CausalLM, CausalLMConfig
from tests.fixtures.tiny_models import assert_same, backend

examples = settings(max_examples=40, deadline=None)


def loops(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    """Compute attention by its definition: one query, one head, one row at a time."""
    n_rows, n_heads, q_len, width = q.shape
    groups = n_heads // k.shape[1]
    out = q.new_zeros(n_rows, n_heads, q_len, v.shape[3])
    for b in range(n_rows):
        for h in range(n_heads):
            for t in range(q_len):
                seen = [j for j in range(k.shape[2]) if allowed[b, h, t, j]]
                if not seen:
                    continue
                scores = (k[b, h // groups, seen] @ q[b, h, t]) * (
                    width**-0.5 if scale is None else scale
                )
                if bias is not None:
                    scores = scores + bias[b, h, t, seen]
                weights = scores.exp() / scores.exp().sum()
                out[b, h, t] = weights @ v[b, h // groups, seen]
    return out


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    n_rows, n_heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    n_kv_heads = draw(st.sampled_from([n for n in range(1, 5) if n_heads % n == 0]))
    q_len, k_len = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    width, v_width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    q, k, v = (
        torch.randn(n_rows, heads, t, d, dtype=torch.float64, requires_grad=True)
        for heads, t, d in (
            (n_heads, q_len, width),
            (n_kv_heads, k_len, width),
            (n_kv_heads, k_len, v_width),
        )
    )
    shapes = [
        (n_rows, n_heads, q_len, k_len),
        (n_rows, 1, 1, k_len),
        (1, n_heads, q_len, k_len),
        (q_len, k_len),
    ]
    mask_shape = draw(st.sampled_from([None, *shapes]))
    mask = None if mask_shape is None else torch.rand(mask_shape) < draw(st.floats(0, 1))
    bias_shape = draw(st.sampled_from([None, *shapes]))
    bias = None
    if bias_shape is not None:
        bias = torch.randn(bias_shape, dtype=torch.float64, requires_grad=True)
    return {
        "qkv": (q, k, v),
        "mask": mask,
        "bias": bias,
        "causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3, 1.0])),
    }


@pytest.mark.parametrize("name", ["naive", "sdpa", "auto"])
@examples
@given(case=cases())
def test_backends_equal_the_definition(name: str, case: dict[str, Any]) -> None:
    q, k, v = case.pop("qkv")
    mask, bias, causal = case["mask"], case["bias"], case["causal"]
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    allowed = torch.ones(full, dtype=torch.bool) if mask is None else mask.expand(full)
    if causal:
        offset = k.shape[2] - q.shape[2]
        allowed = torch.tensor(
            [[j <= t + offset for j in range(full[3])] for t in range(full[2])]
        ).logical_and(allowed)
    wide = None if bias is None else bias.expand(full)
    leaves = [q, k, v] + ([] if bias is None else [bias])

    def gradients(y: Tensor) -> list[Tensor | None]:
        return list(torch.autograd.grad((y * (1 + y)).sum(), leaves, allow_unused=True))

    expected = loops(q, k, v, allowed, wide, case["scale"])
    with attention_backend(name):
        actual = attend(q, k, v, **case)
    assert_same(actual, expected)
    assert (actual[~allowed.any(-1)] == 0).all()
    if not expected.requires_grad:  # nobody sees anything
        assert all((gradient == 0).all() for gradient in gradients(actual) if gradient is not None)
        return
    for mine, theirs in zip(gradients(actual), gradients(expected), strict=True):
        assert mine is not None
        assert_same(mine, torch.zeros_like(mine) if theirs is None else theirs)


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Compute attention by the rule of `attend`; the last query has the column of the last key."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5 + (0.0 if bias is None else bias)
    rows, columns = q.shape[2], k.shape[2]
    ahead = torch.arange(columns) - (torch.arange(rows) + columns - rows)[:, None]
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    allowed = allowed & ((ahead <= 0) | (not causal))
    allowed = allowed & (ahead.abs() < (rows + columns if window is None else window))
    weights = scores.masked_fill(~allowed, -1e30).softmax(-1) * allowed
    return weights @ v


SIZES = st.sampled_from([0, 1, 2, 3, 5, 33])  # 33 queries are two slices of the kernel for windows


@st.composite
def edge_cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw arguments of `attend` with empty sizes, more queries than keys, and single heads."""
    n_rows, q_len, k_len = draw(st.integers(0, 2)), draw(SIZES), draw(SIZES)
    n_kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    shapes = [(n_kv_heads * groups, q_len, 4), (n_kv_heads, k_len, 4), (n_kv_heads, k_len, 3)]
    q, k, v = (torch.randn(n_rows, *shape, dtype=dtype, requires_grad=True) for shape in shapes)
    full = (n_rows, n_kv_heads * groups, q_len, k_len)
    masks = [None, full, (n_rows, 1, 1, k_len), (q_len, k_len)]
    given: dict[str, Any] = dict.fromkeys(("mask", "bias"))
    if shape := draw(st.sampled_from(masks)):
        given["mask"] = torch.rand(shape) < 0.6
    if shape := draw(st.sampled_from(masks)):
        given["bias"] = torch.randn(shape, dtype=dtype, requires_grad=True)
    given["causal"] = draw(st.booleans())
    given["window"] = draw(st.sampled_from([None, None, 1, 2, 4, 40]))
    return {"qkv": (q, k, v), **given}


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=150, deadline=None)
@given(case=edge_cases(), learns=st.booleans())
def test_empty_sizes_and_more_queries_than_keys(
    name: str, case: dict[str, Any], learns: bool
) -> None:
    qkv = case.pop("qkv")
    leaves = [*qkv] if case["bias"] is None else [*qkv, case["bias"]]
    if not learns:
        leaves = []
        qkv = tuple(x.detach() for x in qkv)
        case["bias"] = None if case["bias"] is None else case["bias"].detach()
    expected = naive(*qkv, **case)
    with attention_backend(name), torch.set_grad_enabled(learns):
        actual = attend(*qkv, **case)
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected)
    if learns:
        total = (actual * (1 + actual)).sum(), (expected * (1 + expected)).sum()
        found, wanted = (torch.autograd.grad(x, leaves, allow_unused=True) for x in total)
        for mine, theirs, leaf in zip(found, wanted, leaves, strict=True):
            zeros = torch.zeros_like(leaf)
            torch.testing.assert_close(zeros if mine is None else mine, zeros + theirs)


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 2, 4]),
    n_kv_heads=st.sampled_from([1, 2]),
    padded=st.booleans(),
)
def test_lowered_masks_of_empty_sizes_and_more_queries_than_keys(
    name: str,
    sizes: tuple[int, int, int],
    causal: bool,
    window: int | None,
    n_kv_heads: int,
    padded: bool,
) -> None:
    """A padding mask of real tokens only changes nothing; flex gets a BlockMask."""
    n_rows, q_len, k_len = sizes
    keys = torch.ones(n_rows, k_len, dtype=torch.bool) if padded and k_len else None
    q = torch.randn(n_rows, 2, q_len, 4, dtype=torch.float64)
    k, v = torch.randn(2, n_rows, n_kv_heads, k_len, 4, dtype=torch.float64)
    with backend(name):
        lowered = lower_mask(Mask(causal=causal, window=window, keys=keys), q_len, k_len, q)
        actual = attend(q, k, v, **lowered._asdict())
    assert_same(actual, naive(q, k, v, None, None, causal, window))


@st.composite
def patterns(draw: st.DrawFn) -> tuple[Mask, int, int, int]:
    """Draw a mask with numbers of rows, queries and keys."""
    n_rows, k_len = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    q_len = draw(st.integers(1, k_len))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    keys = torch.rand(n_rows, k_len) < 0.7 if draw(st.booleans()) else None
    documents = torch.randint(3, (n_rows, k_len)) if draw(st.booleans()) else None
    across = documents is not None and draw(st.booleans())
    mask = Mask(
        causal=draw(st.booleans()),
        keys=keys,
        documents=documents,
        query_documents=torch.randint(3, (n_rows, q_len)) if across else None,
        window=draw(st.sampled_from([None, 1, 2, 4])),
        n_global=draw(st.sampled_from([0, 0, 2])),
    )
    return mask, n_rows, q_len, k_len


def may_see(mask: Mask, row: int, query: int, key: int, offset: int) -> bool:
    """Evaluate a mask condition by condition."""
    place = query + offset
    if mask.causal and key > place:
        return False
    if mask.window is not None and min(place, key) >= mask.n_global:
        real = torch.ones(1, 7) if mask.keys is None else mask.keys[row : row + 1]
        between = real[0, min(place, key) + 1 : max(place, key) + 1].sum()  # without padding
        if between >= mask.window:
            return False
    if mask.keys is not None and not mask.keys[row, key]:
        return False
    if mask.documents is None:
        return True
    if mask.query_documents is not None:
        return bool(mask.query_documents[row, query] == mask.documents[row, key])
    return bool(mask.documents[row, place] == mask.documents[row, key])


@pytest.mark.parametrize("name", ["naive", "sdpa", "flex"])
@examples
@given(pattern=patterns(), n_kv_heads=st.sampled_from([1, 2]))
def test_mask_means_the_same_on_every_backend(
    name: str, pattern: tuple[Mask, int, int, int], n_kv_heads: int
) -> None:
    mask, n_rows, q_len, k_len = pattern
    allowed = torch.tensor(
        [
            [[may_see(mask, b, t, j, k_len - q_len) for j in range(k_len)] for t in range(q_len)]
            for b in range(n_rows)
        ]
    )[:, None].expand(-1, 2, -1, -1)
    q = torch.randn(n_rows, 2, q_len, 3, dtype=torch.float64)
    k, v = torch.randn(2, n_rows, n_kv_heads, k_len, 3, dtype=torch.float64)
    with backend(name):
        lowered = lower_mask(mask, q_len, k_len, q)
        actual = attend(q, k, v, mask=lowered.mask, causal=lowered.causal)
    assert_same(actual, loops(q, k, v, allowed, None, None))


def attention(**changes: Any) -> Attention:
    return Attention(12, 3, **changes).double().eval()


@pytest.mark.parametrize("name", ["naive", "sdpa", "flex"])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True),
        Mask(causal=True, keys=torch.tensor([[False, True, True, True]] * 2)),
        Mask(documents=torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])),
        Mask(window=2),
    ],
    ids=["all", "causal", "padded", "packed", "window"],
)
def test_weights_are_those_that_forward_applies(name: str, scale: float | None, mask: Mask) -> None:
    layer = attention(scale=scale, d_value=2)
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    with backend(name):
        lowered = lower_mask(mask, 4, 4, x)
        weights, y = layer.weights(x, mask=lowered), layer(x, mask=lowered)
    seen = weights.sum(-1)
    assert_same(seen, (seen > 0.5).double())  # 1, or 0 for a query without allowed keys
    values = layer.v(x).view(2, 4, 3, 2).transpose(1, 2)
    assert_same(layer.out((weights @ values).transpose(1, 2).reshape(2, 4, 6)), y)


def test_weights_of_cross_attention_with_a_bias() -> None:
    layer, bias = attention(), torch.randn(3, 4, 5, dtype=torch.float64)
    x, memory = (torch.randn(2, n, 12, dtype=torch.float64) for n in (4, 5))
    mask = LoweredMask(torch.rand(2, 1, 1, 5) < 0.6)
    weights = layer.weights(x, memory, mask=mask, bias=bias)
    values = layer.v(memory).view(2, 5, 3, 4).transpose(1, 2)
    y = layer.out((weights @ values).transpose(1, 2).flatten(2))
    assert_same(layer(x, memory, mask=mask, bias=bias), y)


@pytest.mark.parametrize("backend", ["auto", "naive", "sdpa", "flex"])
@pytest.mark.parametrize("by_beam", [False, True])
def test_beams_that_share_a_memory_equal_repeated_memories(backend: str, by_beam: bool) -> None:
    attn, x, memory = Attention(16, 2), torch.randn(4, 3, 16), torch.randn(2, 5, 16)
    real = torch.ones(2, 5, dtype=torch.bool)
    real[0, 3:] = False
    repeated = real.repeat_interleave(2, 0)
    expected = attn(
        x, memory.repeat_interleave(2, 0), mask=lower_mask(Mask(keys=repeated), 3, 5, x)
    )
    with attention_backend(backend):
        lowered = lower_mask(Mask(keys=repeated if by_beam else real), 3, 5, x)
        torch.testing.assert_close(attn(x, memory, mask=lowered), expected)


def test_naive_attention_computes_in_fp32_or_better() -> None:
    q, k = (torch.randn(1, 1, 2, 4, dtype=torch.float64) for _ in range(2))
    assert attention_weights(q, k).dtype == torch.float64
    assert attention_weights(q.bfloat16(), k.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("length", [5, 300])  # below and above the size of one slice of queries
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n_heads", [2, 4])
def test_bf16_attention_on_a_cpu_is_precise(
    length: int, causal: bool, masked: bool, biased: bool, n_heads: int
) -> None:
    shapes = [(2, heads, length, 8) for heads in (n_heads, 2, 2)]
    q, k, v = (torch.randn(shape).bfloat16().requires_grad_() for shape in shapes)
    mask = torch.rand(2, 1, length, length) < 0.5 if masked else None
    if mask is not None:
        mask[0, :, 3] = False
    bias = torch.randn(n_heads, length, length) if biased else None
    y = attend(q, k, v, mask=mask, bias=bias, causal=causal)
    grads = torch.autograd.grad(y.float().square().sum(), (q, k, v))
    with attention_backend("naive"):
        doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected = attend(*doubles, mask=mask, bias=bias, causal=causal)
        wanted = torch.autograd.grad(expected.square().sum(), doubles)
    with torch.no_grad():
        evaluated = attend(q, k, v, mask=mask, bias=bias, causal=causal)
    assert y.dtype == evaluated.dtype == torch.bfloat16
    for actual, want in zip((y, evaluated, *grads), (expected, expected, *wanted), strict=True):
        assert (actual.double() - want).norm() < 0.02 * want.norm()
    if mask is not None:
        assert (y[0, :, 3] == 0).all()
        assert (evaluated[0, :, 3] == 0).all()


@pytest.mark.parametrize("name", ["naive", "sdpa", "auto"])
def test_dropout_preserves_the_mean(name: str) -> None:
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    wide = [x.expand(4000, -1, -1, -1) for x in (q, k, v)]
    with attention_backend(name):
        dropped = attend(*wide, dropout_p=0.3)
        kept = attend(q, k, v)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(0), kept[0], rtol=0, atol=0.05)


def test_dropout_is_off_in_evaluation() -> None:
    layer, x = attention(dropout=0.5), torch.randn(1, 6, 12, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_dense_masks_are_never_block_masks() -> None:
    mask = Mask(window=2)
    with backend("flex"):
        assert not isinstance(lower_mask(mask, 4, 4, torch.ones(1)).mask, Tensor)
        assert isinstance(lower_mask(mask, 4, 4, torch.ones(1), dense=True).mask, Tensor)


def test_causal_mask_is_lowered_to_a_flag() -> None:
    like = torch.ones(1)
    assert lower_mask(Mask(causal=True), 4, 4, like) == LoweredMask(None, True)
    assert lower_mask(Mask(causal=True), 1, 4, like) == LoweredMask(None, False)
    assert lower_mask(Mask(), 3, 4, like) == LoweredMask(None, False)
    assert lower_mask(Mask(causal=True), 3, 4, like).mask.tolist() == [
        [[[True, True, False, False], [True, True, True, False], [True] * 4]]
    ]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("q_len", [1, 5])
def test_cpu_kernel_for_windows_supports_grouped_heads(causal: bool, q_len: int) -> None:
    q = torch.randn(2, 6, q_len, 4, dtype=torch.float64)
    k, v = torch.randn(2, 2, 3, 9, 4, dtype=torch.float64)
    given: dict[str, Any] = {"causal": causal, "window": 3}
    with attention_backend("naive"):
        expected = attend(q, k, v, **given)
    assert_same(attend(q, k, v, **given), expected)


@pytest.mark.parametrize("n_rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_queries_read_the_keys_of_their_group_once(
    monkeypatch: pytest.MonkeyPatch, n_rows: int, dtype: torch.dtype
) -> None:
    q, k = torch.randn(n_rows, 6, 1, 8, dtype=dtype), torch.randn(n_rows, 2, 40, 8, dtype=dtype)
    mask = torch.rand(n_rows, 1, 1, 40) < 0.7
    with attention_backend("naive"):
        expected = attend(q, k, k, mask=mask)
    monkeypatch.setattr("fourfold.core.attention.repeat_heads", None)
    y = attend(q, k, k, mask=mask)
    assert (y - expected).norm() < (0.02 if dtype is torch.bfloat16 else 1e-5) * expected.norm()


def test_a_cache_stores_the_heads_of_keys_and_values_only() -> None:
    attn, cache = Attention(12, 6, n_kv_heads=2, d_value=3), KVCache()
    attn(torch.randn(1, 5, 12), cache=cache.layer(0))
    assert cache.layers[0].buffers is not None
    assert [tuple(x.shape[:2]) for x in cache.layers[0].buffers] == [(1, 2)] * 2
    assert [tuple(p.weight.shape) for p in (attn.q, attn.k, attn.v, attn.out)] == [
        (12, 12),
        (4, 12),
        (6, 12),
        (12, 18),
    ]


@pytest.mark.parametrize("kind", ["head", "all"])
def test_queries_and_keys_are_normalized_before_they_are_turned(kind: Any) -> None:
    attn = Attention(12, 6, n_kv_heads=2, d_head=4, qk_norm=kind, bias=False).double()
    widths = (4, 4) if kind == "head" else (24, 8)
    assert (len(attn.q_norm.weight), len(attn.k_norm.weight)) == widths
    for norm in (attn.q_norm, attn.k_norm):
        torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    turns = rotation(slice(0, 5), x, width=4, theta=100.0)

    def normalized(y: Tensor, weight: Tensor, n_heads: int) -> Tensor:
        groups = y.unflatten(-1, (n_heads, 4)) if kind == "head" else y
        eps = torch.finfo(torch.float64).eps
        y = groups * (groups.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
        return rotate(y.reshape(2, 5, n_heads, 4).transpose(1, 2), turns)

    q = normalized(attn.q(x), attn.q_norm.weight, 6)
    k = normalized(attn.k(x), attn.k_norm.weight, 2).repeat_interleave(3, 1)
    assert_same(attn.weights(x, rotation=turns), (q @ k.mT / 2).softmax(-1))


@pytest.mark.parametrize(("bias", "qkv"), [(True, False), (False, True), (True, None)])
def test_projections_to_queries_keys_and_values_have_their_own_bias(
    bias: bool, qkv: bool | None
) -> None:
    attn = Attention(12, 2, bias=bias, qkv_bias=qkv)
    found = {name for name, _ in attn.named_parameters() if name.endswith("bias")}
    wanted = {"q.bias", "k.bias", "v.bias"} if (bias if qkv is None else qkv) else set()
    assert found == wanted | ({"out.bias"} if bias else set())


@pytest.mark.parametrize("kind", ["head", "all"])
def test_autocast_norms_of_queries_keep_the_low_precision(kind: Any) -> None:
    attn = Attention(16, 2, qk_norm=kind, norm=torch.nn.LayerNorm)
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y = attn(x, mask=LoweredMask(None, True))
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    torch.testing.assert_close(y.float(), attn(x, mask=LoweredMask(None, True)), atol=0.05, rtol=0)


def test_unknown_backend_is_rejected() -> None:
    with (
        pytest.raises(InputError, match="must be one of auto, naive, sdpa, flex, got 'cudnn'"),
        attention_backend("cudnn"),
    ):
        pass


def relu_attention(scores: Tensor) -> Tensor:
    """Attention weights without softmax (Wortsman et al. 2023)."""
    return scores.relu() / scores.shape[-1]


@pytest.mark.parametrize("name", ["auto", "naive", "sdpa", "flex"])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True),
        Mask(keys=torch.tensor([[True, True, True, False]])),
        Mask(window=2),
    ],
    ids=["all", "causal", "padded", "window"],
)
@pytest.mark.parametrize("training", [True, False])
def test_replaced_softmax_is_used_by_every_backend(
    monkeypatch: pytest.MonkeyPatch, name: str, mask: Mask, training: bool
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise AssertionError("a fused kernel was called")

    layer, x = attention().train(training), torch.randn(1, 4, 12, dtype=torch.float64)
    monkeypatch.setattr(Attention, "normalize", staticmethod(relu_attention))
    monkeypatch.setattr(F, "scaled_dot_product_attention", fail)
    monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", fail)
    kernels = ((lambda *arguments: True, fail),)
    monkeypatch.setattr("fourfold.core.attention.BACKENDS", dict.fromkeys(BACKENDS, kernels))
    with attention_backend(name):
        lowered = lower_mask(mask, 4, 4, x)
        y, weights = layer(x, mask=lowered), layer.weights(x, mask=lowered)
    q, k, v = (p(x).view(1, 4, 3, 4).transpose(1, 2) for p in (layer.q, layer.k, layer.v))
    allowed = torch.tensor([[may_see(mask, 0, t, j, 0) for j in range(4)] for t in range(4)])
    expected = relu_attention((q @ k.mT / 2).masked_fill(~allowed, -math.inf))
    assert_same(weights, expected)
    assert_same(y, layer.out((expected @ v).transpose(1, 2).flatten(2)))
    for actual, wanted in zip(
        torch.autograd.grad(y.square().sum(), list(layer.parameters()), retain_graph=True),
        torch.autograd.grad(
            layer.out((expected @ v).transpose(1, 2).flatten(2)).square().sum(),
            list(layer.parameters()),
        ),
        strict=True,
    ):
        assert_same(actual, wanted)


def sharpened_softmax(scores: Tensor) -> Tensor:
    return (2 * scores).softmax(-1)


def test_softmax_can_be_replaced_in_one_layer() -> None:
    layer, sharpened = attention(), attention(scale=1.0)  # the default scale is 1/2
    sharpened.load_state_dict(layer.state_dict())
    layer.normalize = sharpened_softmax
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    assert_same(layer(x), sharpened(x))


def test_replaced_softmax_changes_training_maps_and_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = CausalLMConfig(d_model=8, n_layers=2, n_heads=2, d_ff=8, vocab_size=11, max_len=8)
    model, ids = CausalLM(config).double().eval(), torch.randint(0, 11, (2, 6))
    before = model(ids)
    monkeypatch.setattr(Attention, "normalize", staticmethod(sharpened_softmax))
    after = model(ids)
    assert not torch.allclose(before, after)
    cache = KVCache()
    with torch.no_grad():
        steps = [model(ids[:, t : t + 1], cache=cache) for t in range(6)]
    assert_same(torch.cat(steps, dim=1), after)
    with attention_backend("naive"):
        assert_same(model(ids), after)
    first = model.stack.blocks[0]
    x = first.attn_norm(model.embed(ids, slice(0, 6)))
    (maps, _) = mean_maps(model, "attn", lambda: model(ids))
    lowered = lower_mask(Mask(causal=True), 6, 6, x)
    torch.testing.assert_close(maps, first.attn.weights(x, mask=lowered)[0].mean(0).float())


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["naive", "sdpa", "flex", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("q_len", [37, 64])
def test_cuda_kernels_equal_the_naive_backend(
    name: str, dtype: torch.dtype, causal: bool, q_len: int
) -> None:
    shapes = ((q_len, 16), (64, 16), (64, 32))
    q, k, v = (
        torch.randn(2, 2, t, d, device="cuda", dtype=dtype, requires_grad=True) for t, d in shapes
    )
    keys = torch.rand(2, 64, device="cuda") < 0.7
    keys[1] = False  # a row without allowed keys
    documents = torch.arange(64, device="cuda").expand(2, -1) // 20
    mask = Mask(causal=causal, keys=keys, documents=documents)
    with attention_backend(name):
        lowered = lower_mask(mask, q_len, 64, q)
        y = attend(q, k, v, mask=lowered.mask, causal=lowered.causal)
    grads = torch.autograd.grad(y.float().square().sum(), (q, k, v))
    dense = mask.lower(q_len, 64, q.device)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with attention_backend("naive"):
        expected = attend(*doubles, mask=dense.mask, causal=dense.causal)
    wanted = torch.autograd.grad(expected.square().sum(), doubles)
    for actual, want in zip((y, *grads), (expected, *wanted), strict=True):
        assert actual.isfinite().all()
        assert (actual.double() - want).norm() < 0.02 * want.norm()
    assert (y[1] == 0).all()
