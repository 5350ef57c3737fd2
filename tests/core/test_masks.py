"""Attention masks, and positions compared with a count by hand."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fourfold.core.attention import dense_mask
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask, causal_mask, count_positions, mask_and_positions
from fourfold.errors import InputError


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_positions_count_real_tokens_of_each_document(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 8))
    real = data.draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length))
    steps = data.draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length))
    q_len = data.draw(st.integers(1, length))
    documents = None if steps is None else [sum(steps[: i + 1]) for i in range(length)]
    expected, count = [], 0
    for i in range(length):
        if documents is not None and i and documents[i] != documents[i - 1]:
            count = 0
        if real is None or real[i]:
            expected.append(count)
            count += 1
        else:
            expected.append(None)  # padding may have any position
    positions = count_positions(
        None if real is None else torch.tensor([real]),
        None if documents is None else torch.tensor([documents]),
        q_len,
        length,
    )
    if isinstance(positions, slice):
        assert real is None
        assert documents is None
        found = list(range(length))[positions]
    else:
        found = positions[0].tolist()
    for actual, wanted in zip(found, expected[length - q_len :], strict=True):
        assert actual == wanted if wanted is not None else 0 <= actual < length


def test_causal_mask_is_aligned_at_the_bottom_right() -> None:
    device = torch.device("cpu")
    assert causal_mask(2, 4, device).tolist() == [[True, True, True, False], [True] * 4]
    assert causal_mask(3, 2, device).tolist() == [[False] * 2, [True, False], [True, True]]


@pytest.mark.parametrize("window", range(1, 7))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("q_len", [12, 5, 1])
@pytest.mark.parametrize("n_global", [0, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_window_equals_a_double_loop(
    window: int, causal: bool, q_len: int, n_global: int, padded: bool
) -> None:
    real = [[True] * 12, [True] * 4 + [False] * 3 + [True] * 5]
    keys = torch.tensor(real) if padded else None
    pattern = Mask(causal=causal, keys=keys, window=window, n_global=n_global)
    found = pattern.lower(q_len, 12, torch.device("cpu")).mask
    for row in range(2 if padded else 1):
        counts = [sum(real[row][: i + 1]) for i in range(12)] if padded else range(12)
        for i in range(q_len):
            q = 12 - q_len + i
            for k in range(12):
                near = abs(counts[q] - counts[k]) < window or min(q, k) < n_global
                wanted = near and (k <= q or not causal) and (not padded or real[row][k])
                assert bool(found[row, 0, i, k]) == wanted


@pytest.mark.parametrize("q_len", [7, 3, 1])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("flex", [False, True])
def test_prefix_equals_a_double_loop(q_len: int, padded: bool, packed: bool, flex: bool) -> None:
    prefix = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 1, 0, 1], [0] * 7, [1] * 7]).bool()
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1]]).expand(4, 7)
    keys = torch.arange(7) < torch.tensor([[7], [6], [5], [6]])
    pattern = Mask(
        causal=True,
        prefix=prefix,
        keys=keys if padded else None,
        documents=documents if packed else None,
    )
    lowered = pattern.lower(q_len, 7, torch.device("cpu"), flex=flex)
    assert not lowered.causal  # the kernel must not hide what the prefix shows
    if q_len == 1 and not padded and not packed:
        assert lowered.mask is None  # the last token sees all others
        return
    empty = torch.empty(1, 1, q_len, 1), torch.empty(1, 1, 7, 1)
    found = dense_mask(lowered.mask, False, None, *empty).expand(4, 1, q_len, 7)
    for row in range(4):
        for i in range(q_len):
            q = 7 - q_len + i
            for k in range(7):
                wanted = k <= q or bool(prefix[row, k])
                wanted = wanted and (not padded or bool(keys[row, k]))
                wanted = wanted and (not packed or (q < 4) == (k < 4))
                assert bool(found[row, 0, i, k]) == wanted


def test_prefix_of_the_reference() -> None:
    """Prefix of three of six inputs: the cumulative sum that PaliGemma's mask compares."""
    prefix = torch.tensor([[True, True, True, False, False, False]])
    mask = Mask(causal=True, prefix=prefix).lower(6, 6, torch.device("cpu")).mask[0, 0]
    rows = ["".join(map(str, row)) for row in mask.int().tolist()]
    assert rows == ["111000"] * 3 + ["111100", "111110", "111111"]
    count = (~prefix[0]).cumsum(0)
    assert mask.equal(count[None, :] <= count[:, None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": False}, "prefix needs a causal mask without a window"),
        ({"causal": True, "window": 2}, "prefix needs a causal mask without a window"),
        ({"prefix": torch.ones(2, 3)}, "prefix must be of dtype bool, got torch.float32"),
    ],
)
def test_prefix_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mask(**{"prefix": torch.ones(2, 3, dtype=torch.bool), "causal": True} | options)


def test_cache_without_padding_stores_no_mask() -> None:
    cache, ids = KVCache(), torch.zeros(2, 3, dtype=torch.long)
    mask, positions = mask_and_positions(ids, None, None, cache, causal=True)
    assert mask.keys is None
    assert mask.documents is None
    assert positions == slice(0, 3)
    mask, positions = mask_and_positions(ids[:, :1], None, None, cache, causal=True)
    assert positions == slice(3, 4)
    assert cache.length == 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_mask_must_be_bool(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match="mask must be of dtype bool"):
        Mask(keys=torch.ones(2, 3, dtype=dtype))


@pytest.mark.parametrize("width", [1, 6, 8])
def test_mask_must_have_one_column_per_new_token(width: int) -> None:
    ids, keys = torch.zeros(3, 7, dtype=torch.long), torch.ones(3, width, dtype=torch.bool)
    message = f"mask must have one column per token: got {width} columns for 7 tokens"
    with pytest.raises(InputError, match=message):
        mask_and_positions(ids, keys, None, None, causal=False)
    with pytest.raises(InputError, match=message + ".*new tokens only"):
        mask_and_positions(ids, keys, None, KVCache(), causal=True)
