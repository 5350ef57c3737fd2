"""Positions, counted as one would by hand."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fourfold.core.cache import KVCache, look_back
from fourfold.core.errors import InputError
from fourfold.core.masks import Mask, count_positions, triangle


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_positions_count_real_tokens_of_the_own_document(data: st.DataObject) -> None:
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
            expected.append(None)  # any row of the table will do
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
    for mine, wanted in zip(found, expected[length - q_len :], strict=True):
        assert mine == wanted if wanted is not None else 0 <= mine < length


def test_the_triangle_is_aligned_at_the_end() -> None:
    device = torch.device("cpu")
    assert triangle(2, 4, device).tolist() == [[True, True, True, False], [True] * 4]
    assert triangle(3, 2, device).tolist() == [[False] * 2, [True, False], [True, True]]


def test_a_cache_remembers_only_what_it_must() -> None:
    cache, ids = KVCache(), torch.zeros(2, 3, dtype=torch.long)
    mask, positions = look_back(ids, None, None, cache, causal=True)
    assert mask.keys is None
    assert mask.documents is None
    assert positions == slice(0, 3)
    mask, positions = look_back(ids[:, :1], None, None, cache, causal=True)
    assert positions == slice(3, 4)
    assert cache.length == 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_mask_of_numbers_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match="mask must be bool"):
        Mask(keys=torch.ones(2, 3, dtype=dtype))


@pytest.mark.parametrize("width", [1, 6, 8])
def test_a_mask_is_of_the_new_tokens(width: int) -> None:
    ids, keys = torch.zeros(3, 7, dtype=torch.long), torch.ones(3, width, dtype=torch.bool)
    with pytest.raises(InputError, match=f"a mask of {width} places does not fit 7 tokens"):
        look_back(ids, keys, None, None, causal=False)
    with pytest.raises(InputError, match=f"a mask of {width} places does not fit 7 new tokens"):
        look_back(ids, keys, None, KVCache(), causal=True)
