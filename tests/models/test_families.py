"""Properties of every family: shapes, tied weights, copies, precision and compilation."""

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import Block
from fourfold.core.feed_forward import FeedForward
from fourfold.errors import InputError
from fourfold.layers.positions import PositionTable
from fourfold.losses import linear_cross_entropy
from fourfold.models import ViT, ViTConfig
from tests.fixtures.tiny_models import CONFIGS, MODELS, PAIRS, SHAPE, V, assert_same, build, tokens

families = pytest.mark.parametrize("family", MODELS)


def inputs(family: str, n_rows: int = 2, length: int = 6) -> tuple[Tensor, ...]:
    if family == "vit":
        return (torch.randn(n_rows, 2, 8, 8, dtype=torch.float64),)
    if family in PAIRS:
        return tokens(n_rows, length + 1), tokens(n_rows, length)
    return (tokens(n_rows, length),)


@families
def test_logits_have_the_documented_shape(family: str) -> None:
    y = build(family)(*inputs(family))
    assert y.shape == ((2, 5) if family == "vit" else (2, 6, V))
    assert y.isfinite().all()


TIES = [
    ("encoder_decoder", {"tie_embeddings": "all"}, 1),
    ("encoder_decoder", {"tie_embeddings": "decoder"}, 2),
    ("encoder_decoder", {"tie_embeddings": "embeddings"}, 2),
    ("encoder_decoder", {"tie_embeddings": "none"}, 3),
    ("t5", {}, 1),
    ("t5", {"tie_embeddings": "embeddings"}, 2),
    ("causal", {"tie_embeddings": True}, 1),
    ("causal", {"tie_embeddings": False}, 2),
    ("masked", {}, 1),
    ("joined", {"tie_embeddings": True}, 1),  # of the decoder's width
    ("joined", {"tie_embeddings": False}, 2),
]


@pytest.mark.parametrize(("family", "changes", "n_matrices"), [*TIES, ("vit", {}, 0)])
def test_state_dict_holds_tied_matrices_once(
    family: str, changes: dict[str, Any], n_matrices: int
) -> None:
    model = build(family, **changes)
    state = model.state_dict()
    owners = [tensor.untyped_storage().data_ptr() for tensor in state.values()]
    assert len(owners) == len(set(owners))
    assert set(state) == {key for key, _ in model.named_parameters()}
    assert sum(t.shape == (V, SHAPE["d_model"]) for t in state.values()) == n_matrices


def matrices(model: nn.Module) -> set[int]:
    """Data pointers of all (V, D) parameters."""
    shape = (V, SHAPE["d_model"])
    return {p.data_ptr() for p in model.parameters() if tuple(p.shape) == shape}


@pytest.mark.parametrize(("family", "changes", "n_matrices"), TIES)
def test_copies_keep_tied_matrices(family: str, changes: dict[str, Any], n_matrices: int) -> None:
    model = build(family, **changes)
    given, state = inputs(family), io.BytesIO()
    torch.save(model.state_dict(), state)
    state.seek(0)
    loaded = build(family, **changes)
    loaded.load_state_dict(torch.load(state, weights_only=True), strict=True)
    copies = {
        "original": model,
        "copy": copy.deepcopy(model),
        "loaded": loaded,
        "moved": copy.deepcopy(model).float().to("cpu").double(),
    }
    for name, other in copies.items():
        assert len(matrices(other)) == n_matrices, name
        if name != "original":
            assert not matrices(other) & matrices(model), name
        atol = 1e-3 if name == "moved" else 1e-12
        torch.testing.assert_close(other(*given), model(*given), rtol=atol, atol=atol, msg=name)
    twin = copies["copy"]
    before = model(*given)
    with torch.no_grad():
        twin.head.weight.add_(1.0)
    assert not torch.equal(twin(*given), before)
    assert torch.equal(model(*given), before)
    embed = twin.tgt_embed if family in PAIRS else twin.embed
    tied = changes.get("tie_embeddings") not in (False, "embeddings", "none")
    assert (embed.tokens.weight is twin.head.weight) is tied


def test_gradients_of_tied_matrices_add_up() -> None:
    """One matrix of three uses learns what three matrices would learn together."""
    tied, loose = build("encoder_decoder"), build("encoder_decoder", tie_embeddings="none")
    state = tied.state_dict()
    shared = state["src_embed.tokens.weight"]
    copies = {"tgt_embed.tokens.weight": shared, "head.own.weight": shared}
    loose.load_state_dict({**state, **copies}, strict=True)
    given = inputs("encoder_decoder")
    for model in (tied, loose):
        model(*given).log_softmax(-1)[..., 3].sum().backward()
    uses = (loose.src_embed.tokens, loose.tgt_embed.tokens, loose.head.own)
    assert_same(tied.src_embed.tokens.weight.grad, sum(use.weight.grad for use in uses))


@families
def test_every_parameter_has_a_gradient(family: str) -> None:
    model = build(family).train()
    y = model(*inputs(family))
    loss = y.log_softmax(-1)[..., 1].sum()
    if family == "masked":
        h = model.encode(*inputs(family))
        loss = loss + model.next_sentence_logits(h).log_softmax(-1)[:, 1].sum()
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        # A bias on keys moves all scores of a query alike.
        assert key.endswith("attn.k.bias") or parameter.grad.abs().max() > 1e-12, key


def watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for key, module in model.named_modules():
        if isinstance(module, Block | nn.LayerNorm | Attention | FeedForward):
            yield key, module


@families
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("positions", [None, "none"])
def test_autocast_keeps_residual_stream_norms_and_loss_in_fp32(
    family: str, placement: str, positions: str | None
) -> None:
    changes = {} if positions is None else {"positions": positions}
    if positions and family == "vit":
        changes["pool"] = "mean"  # so that nothing in fp32 is put to the patches
    model = build(family, norm_placement=placement, **changes).float().train()
    seen: dict[str, tuple[torch.dtype, ...]] = {}

    def listen(key: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
            seen[key] = (args[0].dtype, y.dtype)

        return hook

    for key, module in watched(model):
        module.register_forward_hook(listen(key))
    given = tuple(x.float() if x.is_floating_point() else x for x in inputs(family))
    with torch.autocast("cpu", torch.bfloat16):
        y = model(*given)
        if family != "vit":
            h = torch.randn(4, SHAPE["d_model"])
            parts = model.head.output(h)
            assert linear_cross_entropy(*parts, tokens(4)).dtype == torch.float32
    kinds = dict(watched(model))
    for key, (before, after) in seen.items():
        low = isinstance(kinds[key], Attention | FeedForward)
        assert after == (torch.bfloat16 if low else torch.float32), key
        assert before == torch.float32, key
    assert {key for key, module in kinds.items() if isinstance(module, Block)} <= set(seen)
    y.float().logsumexp(-1).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) >= len(list(model.parameters())) - 8  # next_sentence and unused biases
    assert {grad.dtype for grad in gradients} == {torch.float32}
    assert all(grad.isfinite().all() for grad in gradients)


@families
def test_bf16_models_run(family: str) -> None:
    model = build(family).bfloat16()
    given = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs(family))
    y = model(*given)
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


@pytest.fixture
def new_compiler() -> Iterator[None]:
    """Forget what other tests have compiled; the compiler limits the versions of a function."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("new_compiler")
@families
def test_compiles_without_graph_breaks(family: str) -> None:
    model, given = build(family).float(), inputs(family)
    given = tuple(x.float() if x.is_floating_point() else x for x in given)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-4)
    compiled(*given).float().square().mean().backward()


@pytest.mark.slow
@pytest.mark.usefixtures("new_compiler")
@pytest.mark.parametrize("family", ["causal", "masked", *PAIRS])
def test_compiles_with_masks(family: str) -> None:
    model, given = build(family), inputs(family)
    mask = torch.ones_like(given[0], dtype=torch.bool)
    mask[0, -2:] = False
    name = "src_mask" if family in PAIRS else "mask"
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*given, **{name: mask}), model(*given, **{name: mask}))


@pytest.mark.slow
@pytest.mark.usefixtures("new_compiler")
def test_compiles_with_inductor() -> None:
    model, given = build("causal").float(), inputs("causal")
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "n_prefix", "n_heads"),
    [
        ({}, 1, 1),
        ({"pool": "mean"}, 0, 1),
        ({"distillation": True}, 2, 2),
        ({"positions": "sincos2d", "pool": "mean"}, 0, 1),
        ({"positions": "sincos2d"}, 1, 1),
        ({"positions": "none"}, 1, 1),
        ({"representation_size": 7}, 1, 1),
    ],
)
def test_vit_follows_the_definition(changes: dict[str, Any], n_prefix: int, n_heads: int) -> None:
    model, (images,) = build("vit", **changes), inputs("vit")
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2)  # (B, C, 4, 4, 2, 2)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(2, 16, -1)
    x = patches @ model.embed.patches.weight.flatten(1).T + model.embed.patches.bias
    if changes.get("positions") == "sincos2d":  # tokens in front have no place on the grid
        x = x + model.embed.positions.weight
    if n_prefix:
        x = torch.cat([model.embed.prefix.expand(2, -1, -1), x], dim=1)
    if "positions" not in changes:
        x = x + model.embed.positions.weight
    h = model.stack(x)
    assert h.shape == (2, n_prefix + 16, 12)
    assert_same(model.encode(images), h)
    heads = model.logits_per_head(h)
    assert len(heads) == n_heads == len(model.heads)
    for i, (found, head) in enumerate(zip(heads, model.heads, strict=True)):
        pooled = h[:, i] if n_prefix else h.mean(1)
        if model.representation is not None:
            pooled = model.representation(pooled).tanh()
        assert_same(found, head(pooled))
    assert_same(model(images), sum(heads) / n_heads)
    assert_same(model.logits(model.hidden(images)), sum(heads) / n_heads)


def test_patches_are_ordered_by_row() -> None:
    """Row by row, from the left: as positions of a checkpoint assume."""
    model = build("vit", positions="none", pool="mean")
    images = torch.zeros(1, 2, 8, 8, dtype=torch.float64)
    images[0, :, 2:4, 6:8] = 1.0  # second row, fourth column
    x = model.embed(images) - model.embed.patches.bias
    assert x.abs().sum(-1).nonzero().tolist() == [[0, 7]]


def test_images_of_another_size_raise() -> None:
    model = ViT(ViTConfig(**SHAPE, image_size=8, patch_size=2, n_channels=2, n_classes=5))
    with pytest.raises(
        InputError, match=r"images must have the shape \(B, 2, 8, 8\), got \(.*, 2, 8, 6\)"
    ):
        model(torch.randn(1, 2, 8, 6))
    with pytest.raises(InputError, match=r"got \(.*, 1, 8, 8\)"):
        model(torch.randn(1, 1, 8, 8))


def test_missing_next_sentence_head_raises() -> None:
    model = build("masked", next_sentence=False)
    with pytest.raises(InputError, match="next_sentence must be true"):
        model.next_sentence_logits(model.encode(tokens(1, 3)))


def test_segments_default_to_zero() -> None:
    model, ids = build("masked"), tokens(2, 5)
    assert torch.equal(model(ids), model(ids, segments=torch.zeros_like(ids)))
    assert not torch.isclose(model(ids), model(ids, segments=torch.ones_like(ids))).any(-1).all()


@families
def test_model_keeps_its_config(family: str) -> None:
    assert build(family).config == CONFIGS[family]


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "sinusoidal_halves", "learned"])
def test_every_kind_of_positions_runs(positions: str) -> None:
    model, ids = build("causal", positions=positions), tokens(1, 4)
    tables = [m for m in model.modules() if isinstance(m, PositionTable)]
    assert len(tables) == (positions != "none")
    repeated = ids[:, :1].expand(1, 4)
    same = torch.isclose(model(repeated)[0, 0], model(repeated)[0, 3]).all()
    assert bool(same) is (positions == "none")


def test_embed_scale_multiplies_by_the_root_of_the_width() -> None:
    model, ids = build("encoder_decoder", positions="none"), tokens(1, 3)
    expected = model.src_embed.tokens.weight[ids] * SHAPE["d_model"] ** 0.5
    assert_same(model.src_embed(ids, slice(0, 3)), expected)
    model = build("causal", positions="none")
    assert_same(model.embed(ids, slice(0, 3)), model.embed.tokens.weight[ids])


def test_convolutional_stem_follows_the_definition() -> None:
    """Two convolutions of stride 2 reduce patches of 4 pixels; the first has half the width."""
    model, images = (
        build("vit", patch_embedding="convolutional", patch_size=4),
        torch.randn(2, 2, 8, 8),
    )
    images, x = images.double(), images.double()
    convolutions = [m for m in model.embed.stem if isinstance(m, torch.nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [6, 12]
    for i in (0, 3):
        convolution, norm = model.embed.stem[i : i + 2]
        x = F.conv2d(x, convolution.weight, stride=2, padding=1)
        centered = (x - x.mean((1, 2, 3), keepdim=True)).flatten(1)
        scale = (centered.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        x = (centered * scale).view_as(x)
        x = (x * norm.weight[:, None, None] + norm.bias[:, None, None]).relu()
    x = x.flatten(2).mT @ model.embed.patches.weight.flatten(1).T + model.embed.patches.bias
    expected = torch.cat([model.embed.prefix.expand(2, -1, -1), x], 1)
    assert_same(model.embed(images), expected + model.embed.positions.weight)


@pytest.mark.parametrize(("patch_size", "width"), [(1, 12), (6, 12), (8, 6)])
def test_impossible_convolutional_stems_are_rejected(patch_size: int, width: int) -> None:
    with pytest.raises(InputError, match=rf"patch_size must be a power of 2 .* got {patch_size}"):
        build(
            "vit",
            patch_embedding="convolutional",
            image_size=24,
            patch_size=patch_size,
            d_model=width,
        )
