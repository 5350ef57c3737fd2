"""Position embeddings of ViT: values, sharing, gradients, initialization and interpolation."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.block import Stack
from fourfold.core.rotary import rotate
from fourfold.errors import InputError
from fourfold.layers.image_positions import (
    INTERPOLATIONS,
    AxialPositions,
    RelativePositionBias,
    interpolate_positions,
)
from fourfold.models import ViT, ViTConfig
from tests.fixtures.tiny_models import SHAPE, assert_same, build

KINDS: list[dict[str, Any]] = [
    {"positions": "none"},
    {"positions": "learned"},
    {"positions": "learned2d"},
    {"positions": "relative"},
    {"positions": "rotary2d", "rope_theta": 100.0, "d_head": 8},
    *(
        {"positions": kind, "positions_at": where}
        for kind in ("learned", "learned2d")
        for where in ("layers", "layers_shared")
    ),
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


def images(n_rows: int = 2) -> torch.Tensor:
    return torch.randn(n_rows, 2, 8, 8, dtype=torch.float64)


@kinds
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_logits_are_permutation_invariant_only_without_positions(
    kind: dict[str, Any], pool: str
) -> None:
    model, x = build("vit", pool=pool, **kind), images()
    patches = x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(2, 3)  # (B, C, N, 2, 2)
    moved = patches[:, :, torch.randperm(16)].unflatten(2, (4, 4)).transpose(3, 4).flatten(4, 5)
    shuffled = moved.flatten(2, 3)
    assert shuffled.shape == x.shape
    assert torch.allclose(model(x), model(shuffled)) == (kind == {"positions": "none"})


@kinds
def test_positions_have_gradients_and_copies_are_independent(kind: dict[str, Any]) -> None:
    model = build("vit", **kind)
    model(images()).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    twin, x = copy.deepcopy(model), images()
    assert_same(twin(x), model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not torch.equal(twin(x), model(x))  # the copy shares no storage with the original
    storages = [t.untyped_storage().data_ptr() for t in model.state_dict().values()]
    assert len(storages) == len(set(storages))


@pytest.mark.parametrize("kind", ["learned", "learned2d"])
def test_shared_positions_are_stored_once(kind: str) -> None:
    every, shared, stem = (
        build("vit", positions=kind, positions_at=where)
        for where in ("layers", "layers_shared", "stem")
    )
    sizes = [sum(p.numel() for p in model.parameters()) for model in (every, shared, stem)]
    table = sum(p.numel() for p in stem.embed.positions.parameters())
    assert sizes == [sizes[2] + table * (SHAPE["n_layers"] - 1), sizes[2], sizes[2]]
    # Positions added at the stem and in the first layer are equal if the later layers add none.
    every.load_state_dict(
        {
            name: stem.state_dict()[
                name.replace("block.", "", 1)
                .replace("stack.blocks.0.positions.", "embed.positions.")
                .replace("stack.blocks.1.positions.", "embed.positions.")
            ]
            for name in every.state_dict()
        }
    )
    with torch.no_grad():
        for parameter in every.stack.blocks[1].positions.parameters():
            parameter.zero_()
    x = images()
    assert_same(every(x), stem(x))


def test_axial_positions_concatenate_column_and_row() -> None:
    table = AxialPositions(1 + 9, 4)
    weight = table.weight
    assert weight.shape == (10, 4)
    assert torch.equal(weight[:1], table.prefix)
    for where in range(9):
        row, column = divmod(where, 3)
        assert torch.equal(weight[1 + where], torch.cat([table.x[column], table.y[row]]))


def test_relative_bias_depends_on_the_distance_only() -> None:
    bias = RelativePositionBias(3, 5)
    torch.nn.init.normal_(bias.table)
    found = bias()[0]
    assert found.shape == (3, 5, 5)
    assert torch.equal(found[:, :-1, :-1], found[:, 1:, 1:])
    assert len(found[0].unique()) == 9


def test_axial_rotation_depends_on_the_distances_of_rows_and_columns_only() -> None:
    model = build("vit", positions="rotary2d", rope_theta=100.0, d_head=8)
    x = torch.randn(1, 1 + 16, SHAPE["d_model"], dtype=torch.float64)
    turns = model.stack._rotation(None, x, None)
    assert all(part.shape == (17, 4) for part in turns)
    assert torch.equal(turns[0][0], torch.ones(4))
    assert torch.equal(turns[1][0], torch.zeros(4))
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 17, 8) for _ in "qk")
    scores = (rotate(q, turns) @ rotate(k, turns).mT)[0, 0, 1:, 1:].reshape(4, 4, 4, 4)
    assert_close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)  # angles in fp32
    assert_close(scores[:3, :, :3], scores[1:, :, 1:])
    assert_close(scores[:, :3, :, :3], scores[:, 1:, :, 1:])
    assert not torch.allclose(scores[0, 0], scores[0, 0].T)


def test_tables_are_initialized_with_std_0_02() -> None:
    config = ViTConfig(positions_at="layers", d_model=64, n_heads=4, d_ff=64, n_layers=3)
    for block in ViT(config).stack.blocks:
        assert block.positions.weight.std().item() == pytest.approx(0.02, rel=0.1)
    grid = ViT(ViTConfig(positions="learned2d", d_model=64, n_heads=4, d_ff=64, n_layers=1))
    assert grid.embed.positions.x.std().item() == pytest.approx(0.02, rel=0.2)


def test_positions_at_the_stem_use_a_plain_stack() -> None:
    assert type(build("vit", positions="learned2d").stack) is Stack


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "3d"}, "positions must be one of none, learned.* got '3d'"),
        ({"positions_at": "head"}, "positions_at must be one of stem, layers.* got 'head'"),
        (
            {"positions": "sincos2d", "positions_at": "layers"},
            "positions_at must be stem for positions sin",
        ),
        (
            {"positions": "relative", "positions_at": "layers"},
            "positions_at must be stem for positions rel",
        ),
        ({"positions": "rotary2d"}, "positions rotary2d needs rope_theta and a rotary width"),
        (
            {"positions": "rotary2d", "rope_theta": 100.0, "d_head": 6},
            "a rotary width divisible by 4, got 6",
        ),
    ],
)
def test_invalid_positions_raise(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ViTConfig(**changes)


def grid(side: int) -> Tensor:
    return torch.randn(1 + side * side, 5, generator=torch.Generator().manual_seed(side))


@pytest.mark.parametrize(("a", "b"), [(6, 9), (9, 6), (14, 24), (3, 4)])
def test_zoom_equals_scipy(a: int, b: int) -> None:
    """google-research/vision_transformer: zoom of order 1 over the grid."""
    ndimage = pytest.importorskip("scipy.ndimage")
    old = grid(a)
    expected = ndimage.zoom(old[1:].reshape(a, a, 5).numpy(), (b / a, b / a, 1), order=1)
    made = interpolate_positions(old, torch.zeros(1 + b * b, 5), "zoom")
    np.testing.assert_allclose(made[1:].reshape(b, b, 5).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("bicubic", {"mode": "bicubic", "align_corners": False}),
        ("bicubic_antialias", {"mode": "bicubic", "antialias": True}),
        ("bilinear", {"mode": "bilinear", "antialias": False}),
    ],
)
def test_other_interpolations_equal_torch_and_differ(method: str, options: dict[str, Any]) -> None:
    old = grid(14)
    for b in (24, 7):
        made = interpolate_positions(old, torch.zeros(1 + b * b, 5), method)[1:]
        image = old[1:].reshape(1, 14, 14, 5).permute(0, 3, 1, 2)
        expected = F.interpolate(image, size=(b, b), **options).permute(0, 2, 3, 1).reshape(-1, 5)
        torch.testing.assert_close(made, expected)
    shrunk = {m: interpolate_positions(old, torch.zeros(50, 5), m) for m in INTERPOLATIONS}
    others = [m for m in INTERPOLATIONS if m != method]
    assert all((shrunk[method] - shrunk[m]).abs().max() > 0.01 for m in others)


@pytest.mark.parametrize("method", INTERPOLATIONS)
def test_grid_of_the_same_size_is_unchanged(method: str) -> None:
    old = grid(7)
    assert torch.equal(interpolate_positions(old, torch.zeros(50, 5), method), old)
