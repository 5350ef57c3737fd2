"""Who can see whom, in every family and on every attention backend."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from tests.tiny import (
    DECODERS,
    Reader,
    assert_same,
    backend,
    backends,
    causal_readers,
    readers,
    tokens,
)


@causal_readers
@backends
def test_the_future_cannot_change_the_past(kind: str, name: str) -> None:
    read, n = Reader(kind), 9
    source, ids = read.source(2), tokens(2, n)
    with backend(name):
        before = read(ids, **source)
        for place in range(n):
            changed = ids.clone()
            changed[:, place:] = (ids[:, place:] + 1) % 29
            after = read(changed, **source)
            assert torch.equal(after[:, :place], before[:, :place])
            assert not torch.isclose(after[:, place:], before[:, place:]).all(-1).any()


@causal_readers
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_no_gradient_flows_to_the_future(kind: str, name: str) -> None:
    read = Reader(kind)
    ids = torch.arange(8)[None]  # every token once: a row of the table is a place
    source = {"src": tokens(1, 4) % 8 + 8} if kind in DECODERS else {}
    table = (read.model.tgt_embed if kind in DECODERS else read.model.embed).tokens.weight
    with backend(name):
        read(ids, **source)[0, 3].sum().backward()
    assert (table.grad[4:8] == 0).all()
    assert (table.grad[:4] != 0).any(-1).all()


@pytest.mark.parametrize("kind", ["masked", "encoder", "t5_encoder", "stack"])
def test_an_encoder_looks_both_ways(kind: str) -> None:
    read, ids = Reader(kind), tokens(1, 6)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 29
    assert not torch.isclose(read(ids)[0, 0], read(changed)[0, 0]).any()


def pad(rows: list[Tensor], side: str, width: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length among random tokens, and their mask."""
    ids, mask = tokens(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, True
    return ids, mask


@readers
@backends
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(kind: str, name: str, side: str) -> None:
    read = Reader(kind)
    rows = [tokens(n) for n in (7, 1, 4)]
    source = read.source(3)
    ids, mask = pad(rows, side, 9)
    other = torch.where(mask, ids, (ids + 1) % 29)
    with backend(name):
        padded, again = read(ids, mask, **source), read(other, mask, **source)
        assert torch.equal(padded[mask], again[mask])
        for i, row in enumerate(rows):
            alone = read(row[None], **{key: value[i : i + 1] for key, value in source.items()})
            assert_same(padded[i][mask[i]], alone[0], f"row {i}")


@backends
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_source_changes_nothing(name: str, side: str) -> None:
    read, ids = Reader("decoder"), tokens(3, 6)
    rows = [tokens(n) for n in (7, 1, 4)]
    src, mask = pad(rows, side, 9)
    other = torch.where(mask, src, (src + 1) % 29)
    with backend(name):
        padded = read(ids, src=src, src_mask=mask)
        assert torch.equal(padded, read(ids, src=other, src_mask=mask))
        for i, row in enumerate(rows):
            assert_same(padded[i : i + 1], read(ids[i : i + 1], src=row[None]), f"row {i}")


@backends
def test_padding_of_packed_sources_changes_nothing(name: str) -> None:
    """Padding with the number of the last document: the mask alone must hide it."""
    read, ids, documents = Reader("decoder"), tokens(1, 5), number([2, 3])
    src, numbers = tokens(1, 7), number([3, 4])
    mask = torch.tensor([[True] * 5 + [False] * 2])
    with backend(name):
        padded = read(ids, None, documents, src=src, src_mask=mask, src_documents=numbers)
        short = read(ids, None, documents, src=src[:, :5], src_documents=numbers[:, :5])
        assert_same(padded, short)


@readers
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_no_gradient_flows_to_padding(kind: str, name: str) -> None:
    read, source = Reader(kind), Reader(kind).source(2)
    ids, mask = pad([tokens(5), tokens(3)], "left", 6)
    heard: list[Tensor] = []
    blocks = read.model.blocks if kind == "stack" else None
    if blocks is None:
        blocks = getattr(read.model, read.stack).blocks

    def listen(_: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        heard.append(args[0].detach().requires_grad_())
        return heard[0], *args[1:]

    blocks[0].register_forward_pre_hook(listen)
    with backend(name):
        read(ids, mask, **source)[mask].square().sum().backward()
    assert (heard[0].grad[~mask] == 0).all()
    assert (heard[0].grad[mask] != 0).any(-1).all()


@readers
@backends
def test_a_row_of_padding_gives_no_nan(kind: str, name: str) -> None:
    read = Reader(kind)
    source, mask = read.source(2), torch.tensor([[True] * 4, [False] * 4])
    if source:
        source["src_mask"][1] = False
    with backend(name):
        h = read(tokens(2, 4), mask, **source)
        assert h.isfinite().all()
        if name != "flex":
            h.square().sum().backward()
            for key, parameter in read.model.named_parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all(), key


def number(lengths: list[int]) -> Tensor:
    """(1, T): 3 for each token of the first document, 4 for those of the second, ..."""
    return torch.repeat_interleave(torch.arange(len(lengths)) + 3, torch.tensor(lengths))[None]


@readers
@backends
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_packed_documents_are_as_alone(kind: str, name: str, padding: str | None) -> None:
    read, lengths = Reader(kind), [3, 1, 5]
    ids, documents, mask = tokens(1, sum(lengths)), number(lengths), None
    source: dict[str, Tensor] = {}
    src_lengths = [2, 4, 1]
    if kind in DECODERS:
        src = tokens(1, sum(src_lengths))
        source = {"src": src, "src_documents": number(src_lengths)}
    shift = 0
    if padding:  # which has the number of the document beside it: the mask alone must hide it
        shift = 2 if padding == "left" else 0
        places = (shift, 2 - shift)
        mask = torch.nn.functional.pad(torch.ones_like(ids), places).bool()
        documents = torch.nn.functional.pad(documents[None].double(), places, mode="replicate")
        documents = documents[0].long()
        ids = torch.nn.functional.pad(ids, places, value=7)
    with backend(name):
        packed = read(ids, mask, documents, **source)
        for i, end in enumerate(accumulate(lengths)):
            own = slice(shift + end - lengths[i], shift + end)
            if kind in DECODERS:
                stop = sum(src_lengths[: i + 1])
                source_alone = {"src": src[:, stop - src_lengths[i] : stop]}
            else:
                source_alone = {}
            assert_same(packed[:, own], read(ids[:, own], **source_alone), f"document {i}")


@pytest.mark.parametrize("name", ["naive", "sdpa"])
@readers
def test_packed_documents_learn_as_alone(kind: str, name: str) -> None:
    read, lengths = Reader(kind), [4, 2]
    ids, documents = tokens(1, 6), number(lengths)
    packed_source, alone_sources = {}, [{}, {}]
    if kind in DECODERS:
        src = tokens(1, 5)
        packed_source = {"src": src, "src_documents": number([2, 3])}
        alone_sources = [{"src": src[:, :2]}, {"src": src[:, 2:]}]

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        read.model.zero_grad()
        loss.backward()
        named = read.model.named_parameters()
        return {key: p.grad.clone() for key, p in named if p.grad is not None}

    with backend(name):
        packed = gradients(read(ids, None, documents, **packed_source).square().sum())
        alone = gradients(
            read(ids[:, :4], **alone_sources[0]).square().sum()
            + read(ids[:, 4:], **alone_sources[1]).square().sum()
        )
    assert packed.keys() == alone.keys()
    for key, gradient in packed.items():
        torch.testing.assert_close(gradient, alone[key], rtol=1e-8, atol=1e-8, msg=key)
