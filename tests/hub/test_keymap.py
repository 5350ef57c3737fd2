"""Tests of conversion tables with small tensors."""

import pytest
import torch

from fourfold.errors import InputError
from fourfold.hub.keymap import (
    FLIP_CLASSES,
    KEEP,
    OFFSET_2,
    PREFIX_TOKENS,
    SPLIT_QKV,
    SPLIT_QKV_T,
    SQUEEZE_0,
    TRANSPOSE,
    UNSQUEEZE_0,
    Extra,
    KeyMap,
    Rule,
    TensorOp,
)


@pytest.mark.parametrize(
    ("op", "shape", "native_shapes"),
    [
        (KEEP, (4, 3), [(4, 3)]),
        (TRANSPOSE, (4, 3), [(3, 4)]),
        (SPLIT_QKV, (6, 5), [(2, 5)] * 3),
        (SPLIT_QKV_T, (5, 6), [(2, 5)] * 3),
        (FLIP_CLASSES, (2, 3), [(2, 3)]),
        (SQUEEZE_0, (1, 4), [(4,)]),
        (UNSQUEEZE_0, (4,), [(1, 4)]),
        (PREFIX_TOKENS, (1, 1, 4), [(1, 4)]),
    ],
)
def test_tensor_op_is_inverted(
    op: TensorOp, shape: tuple[int, ...], native_shapes: list[tuple[int, ...]]
) -> None:
    external = torch.randn(shape)
    native = op.to_native(external)
    assert [tuple(x.shape) for x in native] == native_shapes
    (restored,) = op.to_external(*native)
    assert torch.equal(restored, external)


def test_rows_of_padding_are_restored_on_export() -> None:
    keymap = KeyMap(Rule("positions.weight", "embed_positions.weight", OFFSET_2))
    external = {"embed_positions.weight": torch.randn(7, 3)}
    expected = {"positions.weight": torch.zeros(5, 3)}
    native, unmapped = keymap.to_native(external, expected)
    assert torch.equal(native["positions.weight"], external["embed_positions.weight"][2:])
    restored, unmatched = keymap.to_external(native, unmapped)
    assert torch.equal(restored["embed_positions.weight"], external["embed_positions.weight"])
    assert unmatched == []
    without_source, _ = keymap.to_external(native, {})
    assert not without_source["embed_positions.weight"][:2].any()


KEYMAP = KeyMap(
    *[
        Rule("blocks.{i}.up.{p}", "layer.{i}.fc.{p}"),
        Extra("pooler.{p}", is_kept=True),
        Extra("lm_head.weight", tied_to="embed.weight"),
        Rule("embed.weight", "embed.weight"),
        Extra("layer.{i}.mask"),
    ]
)
EXPECTED = {"blocks.0.up.weight": torch.zeros(2, 3), "embed.weight": torch.zeros(4, 3)}


def make_external(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    embedding = torch.randn(4, 3)
    return {
        "layer.0.fc.weight": torch.randn(2, 3),
        "embed.weight": embedding,
        "lm_head.weight": embedding.clone(),
        "layer.0.mask": torch.ones(3, 3),
        "pooler.weight": torch.randn(3, 3),
        **{name.replace("__", "."): x for name, x in changes.items()},
    }


def test_tensors_without_a_parameter_are_kept_for_export() -> None:
    external = make_external()
    native, unmapped = KEYMAP.to_native(external, EXPECTED)
    assert native.keys() == EXPECTED.keys()
    assert list(unmapped) == ["pooler.weight"]
    restored, _ = KEYMAP.to_external(native, unmapped)
    assert restored.keys() == {"layer.0.fc.weight", "embed.weight", "pooler.weight"}
    assert all(torch.equal(x, external[name]) for name, x in restored.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter__weight": torch.zeros(1)}, "1 tensors that do not belong to this architecture"),
        ({"layer__0__fc__weight": torch.zeros(3, 3)}, r"has shape \(3, 3\), but .* \(2, 3\)"),
        ({"lm_head__weight": torch.zeros(4, 3)}, "lm_head.weight differs from embed.weight"),
    ],
)
def test_unsuitable_tensors_are_rejected(changes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InputError, match=f"{message}"):
        KEYMAP.to_native(make_external(**changes), EXPECTED)


def test_missing_tensor_is_rejected() -> None:
    external = make_external()
    del external["layer.0.fc.weight"]
    with pytest.raises(InputError, match=r"have no tensor for blocks\.0\.up\.weight \(2, 3\)"):
        KEYMAP.to_native(external, EXPECTED)


def test_native_name_without_a_rule_is_reported() -> None:
    native = {**EXPECTED, "gate.weight": torch.zeros(1)}
    assert KEYMAP.to_external(native, {})[1] == ["gate.weight"]
