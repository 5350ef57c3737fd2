"""Decoding step by step with a cache is the same as one pass over everything."""

import pytest
import torch
from torch import Tensor

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from tests.fixtures.tiny_models import (
    StackRunner,
    assert_same,
    backend,
    backends,
    build,
    causal_stacks,
    tokens,
)


def in_pieces(sizes: list[int], *parts: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(part.split(sizes, dim=1) for part in parts), strict=True))


# Beyond 32 tokens the buffers have to grow, at once and one by one.
@pytest.mark.parametrize("sizes", [[4, 3, 1, 1, 1], [1] * 6, [40, 2, 1], [31, 1, 1, 1, 33, 1]])
@causal_stacks
@backends
def test_chunks_with_a_cache_equal_the_whole_sequence(
    kind: str, name: str, sizes: list[int]
) -> None:
    runner, cache = StackRunner(kind), KVCache()
    ids, source = tokens(2, sum(sizes)), runner.source(2)
    with backend(name):
        whole = runner(ids, **source)
        pieces = [runner(piece, cache=cache, **source) for (piece,) in in_pieces(sizes, ids)]
    assert cache.length == sum(sizes)
    assert_same(torch.cat(pieces, dim=1), whole)


@causal_stacks
@backends
@pytest.mark.parametrize("masked", ["prompt", "every piece", "not the prompt"])
def test_cache_stores_the_padding_mask(kind: str, name: str, masked: str) -> None:
    runner, cache, sizes = StackRunner(kind), KVCache(), [6, 2, 1, 1]
    ids, source = tokens(3, sum(sizes)), runner.source(3)
    mask = torch.ones_like(ids, dtype=torch.bool)
    if masked == "not the prompt":
        mask[0, 6] = mask[2, 7] = False
    else:  # rows of 4, 1 and 6 tokens, padded on the left
        mask[0, :2] = mask[1, :5] = False
    with backend(name):
        whole = runner(ids, mask, **source)
        pieces = []
        for i, (piece, own) in enumerate(in_pieces(sizes, ids, mask)):
            given = {"prompt": i == 0, "every piece": True, "not the prompt": i == 1}[masked]
            pieces.append(runner(piece, own if given else None, cache=cache, **source))
    assert_same(torch.cat(pieces, dim=1)[mask], whole[mask])


@pytest.mark.parametrize("kind", ["causal"])
@backends
@pytest.mark.parametrize("given", ["all", "prompt"])
@pytest.mark.parametrize("padded", [False, True])
def test_cache_stores_the_document_numbers(kind: str, name: str, given: str, padded: bool) -> None:
    runner, cache, sizes = StackRunner(kind), KVCache(), [5, 3, 1, 1]
    ids = tokens(2, sum(sizes))
    last = [2, 2, 3, 3, 3] if given == "all" else [1] * 5
    documents = torch.tensor([[0, 0, 1, 1, 1, *last], [0, 1, 1, 1, 1, *last]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 0] = not padded
    with backend(name):
        whole = runner(ids, mask if padded else None, documents)
        pieces = []
        for i, (piece, own, real) in enumerate(in_pieces(sizes, ids, documents, mask)):
            numbers = own if given == "all" or i == 0 else None
            pieces.append(runner(piece, real if padded else None, numbers, cache=cache))
    assert_same(torch.cat(pieces, dim=1)[mask], whole[mask])


@causal_stacks
@backends
@pytest.mark.parametrize("rows", [[2, 0, 0], [1], [0, 1, 2, 2, 1]])
def test_reorder_moves_rows(kind: str, name: str, rows: list[int]) -> None:
    runner, cache, order = StackRunner(kind), KVCache(), torch.tensor(rows)
    prompt, source = tokens(3, 5), runner.source(3)
    mask = torch.ones_like(prompt, dtype=torch.bool)
    mask[0, :2] = False
    new = tokens(len(rows), 3)
    with backend(name):
        runner(prompt, mask, cache=cache, **source)
        cache.reorder(order)
        source = {key: value[order] for key, value in source.items()}
        steps = [runner(new[:, :2], cache=cache, **source)]
        cache.reorder(torch.arange(len(rows)))  # and once more, now that buffers are full
        steps.append(runner(new[:, 2:], cache=cache, **source))
        ids = torch.cat([prompt[order], new], dim=1)
        whole = runner(ids, torch.nn.functional.pad(mask[order], (0, 3), value=True), **source)
    assert_same(torch.cat(steps, dim=1), whole[:, 5:])


@pytest.mark.parametrize("kind", ["causal"])
def test_reorder_moves_document_numbers(kind: str) -> None:
    runner, cache = StackRunner(kind), KVCache()
    ids, documents = tokens(2, 4), torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1]])
    order, new = torch.tensor([1, 0]), tokens(2, 1)
    runner(ids, None, documents, cache=cache)
    cache.reorder(order)
    step = runner(new, cache=cache)
    numbers = torch.cat([documents, documents[:, -1:]], dim=1)[order]
    assert_same(step, runner(torch.cat([ids[order], new], 1), None, numbers)[:, -1:])


def test_memory_is_projected_once() -> None:
    runner, cache = StackRunner("decoder"), KVCache()
    source, calls = runner.source(2), []
    runner.model.decoder.blocks[0].cross_attn.k.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(3):
        runner(tokens(2, 1), cache=cache, **source)
    assert len(calls) == 1


def test_cache_is_not_part_of_the_state_dict() -> None:
    model, ids = build("causal"), tokens(1, 4)
    alone = model(ids)
    model(tokens(1, 7), cache=KVCache())
    assert torch.equal(model(ids), alone)


@pytest.mark.parametrize("padded", [False, True])
def test_more_tokens_than_max_len_raise(padded: bool) -> None:
    model, cache = build("causal", max_len=8), KVCache()
    mask = torch.ones(1, 8, dtype=torch.bool) if padded else None
    model(tokens(1, 8), mask=mask, cache=cache)
    with pytest.raises(InputError, match="at most max_len = 8 tokens, got 9"):
        model(tokens(1, 1), cache=cache)


def test_padding_does_not_count_towards_max_len() -> None:
    model, ids = build("causal", max_len=4), tokens(1, 6)
    left = torch.tensor([[False, False, True, True, True, True]])
    assert_same(model(ids, mask=left)[:, 2:], model(ids[:, 2:]))
    assert_same(model(ids, mask=left.flip(1))[:, :4], model(ids[:, :4]))
