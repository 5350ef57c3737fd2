"""CLIP: an image encoder and a text encoder with a shared embedding space (Radford et al. 2021).

Shapes: B images, C channels, N image tokens (class token and patches), S texts, T text tokens, D
width of an encoder, E width of the shared space.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.block import Stack, norm_from_config
from fourfold.core.config import Activation, NormPlacement, TransformerConfig
from fourfold.core.masks import Mask, mask_and_positions
from fourfold.core.validation import MAX_VOCABULARY, ImageSize
from fourfold.layers.base_model import (
    Model,
    embedding_from_config,
    patches_from_config,
    second_stack,
)


@dataclass(frozen=True)
class CLIPConfig(TransformerConfig):
    """Config of a CLIP; the defaults are ViT-B/32 (151,277,313 parameters; Radford et al. 2021).

    The fields of `TransformerConfig` describe the text encoder. In the image encoder, the fields
    with the prefix `image_` replace `d_model`, `n_layers`, `n_heads` and `d_ff`; the fields
    `d_head`, `d_value`, `n_kv_heads` and `attn_scale` are None; all others hold for both encoders.

    Args:
        vocab_size: Size of the vocabulary. None takes that of the tokenizer.
        max_len: Longest text in tokens.
        eos_id: End-of-text token, whose first hidden state represents the text. None means the
            highest token id of each text, which is the end of text in OpenAI's vocabulary.
        image_d_model: Width of the image encoder.
        image_n_layers: Number of blocks of the image encoder.
        image_n_heads: Number of attention heads of the image encoder, image_d_model / image_n_heads
            wide.
        image_d_ff: Hidden width of the feed-forward layers of the image encoder.
        image_size: Height and width of the image in pixels, or the side of a square image.
        patch_size: Side of a patch in pixels.
        n_channels: Number of image channels C.
        d_embed: Width E of the shared embedding space.
    """

    d_model: int = 512
    n_layers: int = 12
    n_heads: int = 8
    d_ff: int = 2048
    activation: Activation = "quick_gelu"
    norm_placement: NormPlacement = "pre"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    vocab_size: int | None = 49408
    max_len: int = 77
    eos_id: int | None = None
    image_d_model: int = 768
    image_n_layers: int = 12
    image_n_heads: int = 12
    image_d_ff: int = 3072
    image_size: ImageSize = 224
    patch_size: int = 32
    n_channels: int = 3
    d_embed: int = 512
    n_prefix: ClassVar[int] = 1  # tokens before the patches: the class token
    ranges: ClassVar = {"eos_id": {"minimum": 0, "maximum": MAX_VOCABULARY}}

    @property
    def image_tower(self) -> TransformerConfig:
        """Config of the blocks of the image encoder, as a `TransformerConfig` of its own."""
        names = ("d_model", "n_layers", "n_heads", "d_ff")
        return second_stack(self, **{name: getattr(self, f"image_{name}") for name in names})


class CLIP(Model):
    """CLIP: computes the similarities of images and texts from the outputs of two encoders.

    Source: Radford et al. 2021, section 2.3 and Figure 3. A call of the model takes images (B, C,
    height, width) and token ids (S, T), and returns the scaled cosine similarities (B, S).
    """

    accepts_images = True

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        self.config = config
        self.text_embed = embedding_from_config(config)
        self.text_stack = Stack(config)
        self.text_projection = nn.Linear(config.d_model, config.d_embed, bias=False)
        tower = config.image_tower
        self.image_embed = patches_from_config(config, tower.d_model, dropout=tower.dropout)
        # Removed after construction, so that the random numbers of the other weights stay the same.
        self.image_embed.patches.register_parameter("bias", None)
        self.image_norm = norm_from_config(tower)
        self.image_stack = Stack(tower)
        self.image_projection = nn.Linear(tower.d_model, config.d_embed, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))  # section 2.5
        self._initialize()

    def forward(self, images: Tensor, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Compute the scaled cosine similarities (B, S) of B images and S texts.

        The token ids (S, T) of each text contain the end-of-text token.
        """
        return self.similarity(self.encode_image(images), self.encode_text(ids, mask))

    def encode_image(self, images: Tensor) -> Tensor:
        """Compute the embeddings (B, E) of images (B, C, height, width), not normalized."""
        x = self.image_stack(self.image_norm(self.image_embed(images)), Mask(n_global=1))
        return self.image_projection(x[:, 0])  # (B, E), of the class token

    def encode_text(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the embeddings (S, E) of texts (S, T), not normalized.

        Padding on the right needs no mask, unless the config's `eos_id` is None and the id of the
        padding token is higher than that of the end-of-text token.
        """
        attn_mask, positions = mask_and_positions(ids, mask, None, None, causal=True)
        x = self.text_stack(self.text_embed(ids, positions), attn_mask)  # (S, T, D)
        real = ids if mask is None else ids.masked_fill(~mask, -1)
        end = real if self.config.eos_id is None else (real == self.config.eos_id).long()
        rows = torch.arange(x.shape[0], device=x.device)
        return self.text_projection(x[rows, end.argmax(-1)])  # (S, E)

    def similarity(self, images: Tensor, texts: Tensor) -> Tensor:
        """Compute scaled cosine similarities (B, S) of embeddings (B, E), (S, E), in fp32."""
        device_type = "cpu" if images.is_meta else images.device.type  # autocast has no "meta"
        with torch.autocast(device_type, enabled=False):
            scale = self.scale
            images, texts = (F.normalize(x.to(scale.dtype), dim=-1) for x in (images, texts))
            return scale * (images @ texts.T)

    @property
    def scale(self) -> Tensor:
        """Learned factor on the cosine similarities, a scalar in at least fp32."""
        return self.log_scale.to(torch.promote_types(self.log_scale.dtype, torch.float32)).exp()

    def embeddings(self) -> list[nn.Module]:
        """Return the embeddings, and the norm before the first block of the image encoder."""
        return [*super().embeddings(), self.image_norm]

    def _initialize(self) -> None:
        """Draw matrices from normal distributions with mean 0, and set biases to 0.

        The standard deviation depends on the width and depth of the encoder that has the matrix.
        """
        for name, parameter in self.named_parameters():
            side = "image_" if name.startswith("image_") else ""
            std = getattr(self.config, side + "d_model") ** -0.5
            n_layers = getattr(self.config, side + "n_layers")
            residual = std * (2 * n_layers) ** -0.5  # of matrices that write to the residual stream
            hidden = std * 0.5**0.5
            stds = {"out": residual, "down": residual, "up": hidden, "gate": hidden}
            if not side:
                stds |= {"tokens": 0.02, "positions": 0.01}
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:  # the patch projection keeps torch's initialization
                nn.init.normal_(parameter, std=stds.get(name.split(".")[-2], std))
