"""Masked autoencoder: pre-training of a ViT on images without labels (MAE; He et al. 2021).

The encoder, a ViT, sees a quarter of the patches. A small decoder predicts the pixels of the other
patches from the output of the encoder and from mask tokens. Only the encoder is used afterwards.
Shapes: B images, C channels, N patches, V visible patches, P pixels of a patch (side * side * C), D
width of the encoder, E width of the decoder.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.errors import InputError
from fourfold.layers.base_model import Model, patches_from_config, second_stack
from fourfold.layers.image_positions import positions_on
from fourfold.layers.init import vaswani
from fourfold.layers.positions import make_positions
from fourfold.models.vit.model import PatchConfig

MASK_TOKEN_STD = 0.02  # also of the class token


@dataclass(frozen=True)
class MaskedAutoencoderConfig(PatchConfig):
    """Config of an MAE; the defaults have ViT-B/16 (111,655,680 parameters; He et al. 2021).

    The fields of `TransformerConfig` describe the encoder. In the decoder, `decoder_d_model`,
    `n_decoder_layers`, `decoder_n_heads` and `decoder_d_ff` replace `d_model`, `n_layers`,
    `n_heads` and `d_ff`; the fields `d_head`, `d_value`, `n_kv_heads` and `attn_scale` are None;
    all others hold for both.

    Args:
        positions: Sines and cosines of row and column, in the encoder and the decoder: sincos2d_mae
            (as in the authors' code) or sincos2d (as in `ViT`).
        decoder_d_model: Width E of the decoder.
        n_decoder_layers: Number of blocks of the decoder.
        decoder_n_heads: Number of attention heads of the decoder, each E / decoder_n_heads wide.
        decoder_d_ff: Hidden width of the feed-forward layers of the decoder.
    """

    positions: Literal["sincos2d", "sincos2d_mae"] = "sincos2d_mae"
    decoder_d_model: int = 512
    n_decoder_layers: int = 8
    decoder_n_heads: int = 16
    decoder_d_ff: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_theta is not None:
            message = "must be None for a masked autoencoder, whose encoder sees some patches only,"
            message += f" got {self.rope_theta}; every other family takes it"
            raise InputError(message, option="rope_theta")
        assert self.decoder_blocks  # the constructor checks the divisibility of decoder_d_model

    @property
    def decoder_blocks(self) -> TransformerConfig:
        """Config of the blocks of the decoder, as a `TransformerConfig` of its own."""
        sizes = {name: getattr(self, f"decoder_{name}") for name in ("d_model", "n_heads", "d_ff")}
        return second_stack(self, n_layers=self.n_decoder_layers, **sizes)


class MaskedAutoencoder(Model):
    """Masked autoencoder of images, whose encoder is a ViT with a class token.

    Source: He et al. 2021, section 3. A call of the model takes the images and the indices of the
    visible patches, and returns the predicted pixels of all patches. The parameters of the encoder
    have the same names as in `ViT`, so the option `init_from` can initialize a `ViT` with them.
    """

    accepts_images = True
    has_known_cost = False  # it depends on the number of visible patches

    def __init__(self, config: MaskedAutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        options: dict[str, Any] = {"positions": config.positions, "dropout": config.dropout}
        self.embed = patches_from_config(config, config.d_model, **options)
        self.stack = Stack(config)
        decoder = config.decoder_blocks
        self.decoder_map = nn.Linear(config.d_model, decoder.d_model)
        self.mask_token = nn.Parameter(torch.zeros(decoder.d_model))
        grid = self.embed.grid
        self.decoder_positions = make_positions(
            config.positions, grid[0] * grid[1], decoder.d_model, positions_on(grid)
        )
        self.decoder_stack = Stack(decoder)
        self.pixels = nn.Linear(decoder.d_model, config.n_channels * config.patch_size**2)
        # As in the authors' code: matrices by Glorot's rule, also the patch projection as (D, P).
        vaswani(self)
        nn.init.xavier_uniform_(self.embed.patches.weight.flatten(1))
        assert self.embed.prefix is not None
        for token in (self.embed.prefix, self.mask_token):
            nn.init.normal_(token, std=MASK_TOKEN_STD)

    def forward(self, images: Tensor, *, visible: Tensor | None = None) -> Tensor:
        """Predict the pixels (B, N, P) of all patches, in the order of `patchify`.

        The predictions for visible patches are not trained.

        Args:
            visible: (B, V) long, different indices of the patches that the encoder sees, which are
                numbered row by row. None means all patches.
        """
        return self.decode(self.encode(images, visible=visible), visible)

    def encode(self, images: Tensor, *, visible: Tensor | None = None) -> Tensor:
        """Compute the final hidden states (B, 1 + V, D) of class token and visible patches."""
        x = self.embed(images)  # (B, 1 + N, D), the class token first
        if visible is not None:
            index = visible[..., None].expand(-1, -1, x.shape[-1])
            x = torch.cat([x[:, :1], x[:, 1:].gather(1, index)], dim=1)
        return self.stack(x)

    def decode(self, h: Tensor, visible: Tensor | None = None) -> Tensor:
        """Predict the pixels (B, N, P) of all patches from the result (B, 1 + V, D) of `encode`."""
        assert self.decoder_positions is not None
        positions = self.decoder_positions.weight  # (N, E)
        # Under autocast the linear map runs in low precision; the residual stream stays in fp32.
        y = self.decoder_map(h).to(self.mask_token.dtype)
        patches = y[:, 1:]
        if visible is not None:
            tokens = self.mask_token.expand(len(y), len(positions), -1)
            patches = tokens.scatter(1, visible[..., None].expand_as(patches), patches)
        y = torch.cat([y[:, :1], patches + positions], dim=1)
        return self.pixels(self.decoder_stack(y)[:, 1:])

    def patchify(self, images: Tensor) -> Tensor:
        """Divide images (B, C, height, width) into patches (B, N, P), row by row.

        The pixels of a patch are ordered by row, column and channel.
        """
        side = self.config.patch_size
        patches = images.unfold(2, side, side).unfold(3, side, side)  # (B, C, rows, columns, ...)
        return patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)

    def unpatchify(self, patches: Tensor) -> Tensor:
        """Join patches (B, N, P) to images (B, C, height, width), as the inverse of `patchify`."""
        side = self.config.patch_size
        grid = patches.unflatten(2, (side, side, -1)).unflatten(1, self.embed.grid)
        return grid.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
