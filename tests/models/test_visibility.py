"""Visibility of tokens in every family and attention backend: causality, padding, documents."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from tests.fixtures.tiny_models import (
    DECODERS,
    StackRunner,
    all_stacks,
    assert_same,
    backend,
    backends,
    causal_stacks,
    tokens,
)


@causal_stacks
@backends
def test_later_tokens_do_not_change_earlier_states(kind: str, name: str) -> None:
    runner, n = StackRunner(kind), 9
    source, ids = runner.source(2), tokens(2, n)
    with backend(name):
        before = runner(ids, **source)
        for position in range(n):
            changed = ids.clone()
            changed[:, position:] = (ids[:, position:] + 1) % 29
            after = runner(changed, **source)
            assert torch.equal(after[:, :position], before[:, :position])
            assert not torch.isclose(after[:, position:], before[:, position:]).all(-1).any()


@causal_stacks
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_no_gradient_flows_to_later_tokens(kind: str, name: str) -> None:
    runner = StackRunner(kind)
    ids = torch.arange(8)[None]  # each token occurs once
    source = {"src": tokens(1, 4) % 8 + 8} if kind in DECODERS else {}
    table = (runner.model.tgt_embed if kind in DECODERS else runner.model.embed).tokens.weight
    with backend(name):
        runner(ids, **source)[0, 3].sum().backward()
    assert (table.grad[4:8] == 0).all()
    assert (table.grad[:4] != 0).any(-1).all()


@pytest.mark.parametrize("kind", ["masked", "encoder", "t5_encoder", "stack"])
def test_encoders_are_bidirectional(kind: str) -> None:
    runner, ids = StackRunner(kind), tokens(1, 6)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 29
    assert not torch.isclose(runner(ids)[0, 0], runner(changed)[0, 0]).any()


def pad(rows: list[Tensor], side: str, width: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length among random tokens, and their mask."""
    ids, mask = tokens(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        positions = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, positions], mask[i, positions] = row, True
    return ids, mask


@all_stacks
@backends
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_the_states(kind: str, name: str, side: str) -> None:
    runner = StackRunner(kind)
    rows = [tokens(n) for n in (7, 1, 4)]
    source = runner.source(3)
    ids, mask = pad(rows, side, 9)
    other = torch.where(mask, ids, (ids + 1) % 29)
    with backend(name):
        padded, again = runner(ids, mask, **source), runner(other, mask, **source)
        assert torch.equal(padded[mask], again[mask])
        for i, row in enumerate(rows):
            alone = runner(row[None], **{key: value[i : i + 1] for key, value in source.items()})
            assert_same(padded[i][mask[i]], alone[0], f"row {i}")


@backends
@pytest.mark.parametrize("side", ["left", "right"])
def test_source_padding_does_not_change_the_states(name: str, side: str) -> None:
    runner, ids = StackRunner("decoder"), tokens(3, 6)
    rows = [tokens(n) for n in (7, 1, 4)]
    src, mask = pad(rows, side, 9)
    other = torch.where(mask, src, (src + 1) % 29)
    with backend(name):
        padded = runner(ids, src=src, src_mask=mask)
        assert torch.equal(padded, runner(ids, src=other, src_mask=mask))
        for i, row in enumerate(rows):
            assert_same(padded[i : i + 1], runner(ids[i : i + 1], src=row[None]), f"row {i}")


@backends
def test_padding_of_packed_sources_does_not_change_the_states(name: str) -> None:
    """Padding with the number of the last document: the mask alone must hide it."""
    runner, ids, documents = StackRunner("decoder"), tokens(1, 5), number([2, 3])
    src, numbers = tokens(1, 7), number([3, 4])
    mask = torch.tensor([[True] * 5 + [False] * 2])
    with backend(name):
        padded = runner(ids, None, documents, src=src, src_mask=mask, src_documents=numbers)
        short = runner(ids, None, documents, src=src[:, :5], src_documents=numbers[:, :5])
        assert_same(padded, short)


@all_stacks
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_no_gradient_flows_to_padding(kind: str, name: str) -> None:
    runner, source = StackRunner(kind), StackRunner(kind).source(2)
    ids, mask = pad([tokens(5), tokens(3)], "left", 6)
    inputs: list[Tensor] = []
    blocks = runner.model.blocks if runner.kind == "stack" else None
    if blocks is None:
        blocks = getattr(runner.model, runner.stack).blocks

    def record(_: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        inputs.append(args[0].detach().requires_grad_())
        return inputs[0], *args[1:]

    blocks[0].register_forward_pre_hook(record)
    with backend(name):
        runner(ids, mask, **source)[mask].square().sum().backward()
    assert (inputs[0].grad[~mask] == 0).all()
    assert (inputs[0].grad[mask] != 0).any(-1).all()


@all_stacks
@backends
def test_rows_of_padding_give_no_nan(kind: str, name: str) -> None:
    runner = StackRunner(kind)
    source, mask = runner.source(2), torch.tensor([[True] * 4, [False] * 4])
    if source:
        source["src_mask"][1] = False
    with backend(name):
        h = runner(tokens(2, 4), mask, **source)
        assert h.isfinite().all()
        if name != "flex":
            h.square().sum().backward()
            for key, parameter in runner.model.named_parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all(), key


def number(lengths: list[int]) -> Tensor:
    """(1, T): 3 for each token of the first document, 4 for those of the second, ..."""
    return torch.repeat_interleave(torch.arange(len(lengths)) + 3, torch.tensor(lengths))[None]


@all_stacks
@backends
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_packed_documents_equal_separate_documents(
    kind: str, name: str, padding: str | None
) -> None:
    runner, lengths = StackRunner(kind), [3, 1, 5]
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
        packed = runner(ids, mask, documents, **source)
        for i, end in enumerate(accumulate(lengths)):
            own = slice(shift + end - lengths[i], shift + end)
            if kind in DECODERS:
                stop = sum(src_lengths[: i + 1])
                source_alone = {"src": src[:, stop - src_lengths[i] : stop]}
            else:
                source_alone = {}
            assert_same(packed[:, own], runner(ids[:, own], **source_alone), f"document {i}")


@pytest.mark.parametrize("name", ["naive", "sdpa"])
@all_stacks
def test_gradients_of_packed_documents_equal_separate_documents(kind: str, name: str) -> None:
    runner, lengths = StackRunner(kind), [4, 2]
    ids, documents = tokens(1, 6), number(lengths)
    packed_source, alone_sources = {}, [{}, {}]
    if kind in DECODERS:
        src = tokens(1, 5)
        packed_source = {"src": src, "src_documents": number([2, 3])}
        alone_sources = [{"src": src[:, :2]}, {"src": src[:, 2:]}]

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        runner.model.zero_grad()
        loss.backward()
        named = runner.model.named_parameters()
        return {key: p.grad.clone() for key, p in named if p.grad is not None}

    with backend(name):
        packed = gradients(runner(ids, None, documents, **packed_source).square().sum())
        alone = gradients(
            runner(ids[:, :4], **alone_sources[0]).square().sum()
            + runner(ids[:, 4:], **alone_sources[1]).square().sum()
        )
    assert packed.keys() == alone.keys()
    for key, gradient in packed.items():
        torch.testing.assert_close(gradient, alone[key], rtol=1e-8, atol=1e-8, msg=key)
