"""Masked autoencoder against its definition: visible patches, mask tokens, sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.analysis.flops import parameters
from fourfold.errors import InputError
from fourfold.layers.image_positions import sincos2d_mae
from fourfold.models import MaskedAutoencoder, MaskedAutoencoderConfig

SHAPE: dict[str, Any] = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 20, "dropout": 0.0}
CONFIG = MaskedAutoencoderConfig(
    **SHAPE,
    image_size=8,
    patch_size=2,
    n_channels=3,
    decoder_d_model=8,
    n_decoder_layers=1,
    decoder_n_heads=2,
    decoder_d_ff=16,
)


def build() -> MaskedAutoencoder:
    model = MaskedAutoencoder(CONFIG).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def inputs(n_visible: int = 4) -> tuple[Tensor, Tensor]:
    visible = torch.rand(2, 16).argsort(1)[:, :n_visible].sort(1).values
    return torch.randn(2, 3, 8, 8, dtype=torch.float64), visible


def test_patches_are_rows_of_pixels_and_are_joined_again() -> None:
    model, (images, _) = build(), inputs()
    patches = model.patchify(images)
    assert patches.shape == (2, 16, 12)
    for n in range(16):
        y, x = 2 * (n // 4), 2 * (n % 4)
        expected = images[:, :, y : y + 2, x : x + 2].permute(0, 2, 3, 1).flatten(1)
        assert torch.equal(patches[:, n], expected)
    assert torch.equal(model.unpatchify(patches), images)


def test_visible_patches_do_not_see_masked_pixels() -> None:
    model, (images, visible) = build(), inputs()
    patches = model.patchify(images)
    is_visible = torch.zeros(2, 16, dtype=torch.bool).scatter(1, visible, True)
    changed = model.unpatchify(torch.where(is_visible[..., None], patches, torch.randn(2, 16, 12)))
    assert torch.equal(
        model.encode(images, visible=visible), model.encode(changed, visible=visible)
    )
    assert torch.equal(model(images, visible=visible), model(changed, visible=visible))
    other = model.unpatchify(torch.where(is_visible[..., None], patches + 1, patches))
    assert not torch.isclose(
        model.encode(images, visible=visible), model.encode(other, visible=visible)
    ).any()


def test_encoder_and_decoder_follow_the_definition() -> None:
    model, (images, visible) = build(), inputs()
    x = model.embed(images)
    h = [model.stack(x[i : i + 1, [0, *(visible[i] + 1).tolist()]]) for i in range(2)]
    torch.testing.assert_close(model.encode(images, visible=visible), torch.cat(h))
    table: Any = model.decoder_positions
    rows = []
    for i in range(2):
        y = model.decoder_map(h[i][0])
        tokens = [y[0]]
        for n in range(16):
            is_visible = n in visible[i]
            token = y[1 + visible[i].tolist().index(n)] if is_visible else model.mask_token
            tokens.append(token + table.weight[n])
        rows.append(model.pixels(model.decoder_stack(torch.stack(tokens)[None])[0, 1:]))
    torch.testing.assert_close(model(images, visible=visible), torch.stack(rows))


def test_all_patches_are_visible_without_a_choice() -> None:
    model, (images, _) = build(), inputs()
    everything = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(model(images), model(images, visible=everything))


def test_parameters_of_the_paper_and_of_transformers() -> None:
    """MAE with ViT-B/16; the position tables of transformers are parameters without a gradient."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        ours = MaskedAutoencoder(MaskedAutoencoderConfig())
        theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig())
    n_positions = 197 * 768 + 197 * 512
    count = sum(p.numel() for p in theirs.parameters())
    assert parameters(ours).total == count - n_positions == 111_655_680


def test_positions_have_the_wavelengths_of_the_authors() -> None:
    """The code of transformers has the halves of row and column in another order."""
    pytest.importorskip("transformers")
    from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

    theirs = build_2d_sinusoidal_position_embedding(3, 3, 16)
    torch.testing.assert_close(sincos2d_mae(9, 16).weight.roll(8, 1), theirs)


def test_initial_values() -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(MaskedAutoencoderConfig(n_layers=1, n_decoder_layers=1))
    limit = (6 / (768 + 768)) ** 0.5  # Glorot's, of the patch projection as a matrix
    patches = model.embed.patches.weight
    assert 0.99 * limit < patches.abs().max() <= limit
    assert model.mask_token.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.embed.prefix is not None
    assert model.embed.prefix.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_d_model": 9}, "d_model must be divisible by n_heads"),
        ({"decoder_n_heads": 0}, "decoder_n_heads must be at least 1, got 0"),
        ({"positions": "learned"}, "positions must be one of sincos2d, sincos2d_mae"),
    ],
)
def test_invalid_configs_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedAutoencoderConfig(**change)
