"""SigLIP: a CLIP with a sigmoid loss and other pooling (Zhai et al. 2023).

Shapes: B images, C channels, N patches, S texts, T text tokens, D width of an encoder, E width of
the shared space.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import norm_from_config
from fourfold.core.config import Activation, TransformerConfig
from fourfold.core.feed_forward import FeedForward
from fourfold.core.validation import MAX_VOCABULARY
from fourfold.errors import InputError
from fourfold.layers.base_model import patches_from_config
from fourfold.models.contrastive.clip import CLIP, CLIPConfig
from fourfold.models.vit.model import ViT, ViTConfig


@dataclass(frozen=True)
class SigLIPConfig(CLIPConfig):
    """Config of a SigLIP; the defaults are ViT-B/16 (203,155,970 parameters).

    Source: Zhai et al. 2023. The inherited field `eos_id` is not used.

    Args:
        pad_id: Token that fills each text up to `max_len` tokens. The text encoder attends to it.
        d_embed: Width E of the shared embedding space, which is the width of the image encoder.
    """

    d_model: int = 768
    n_heads: int = 12
    d_ff: int = 3072
    activation: Activation = "gelu_tanh"
    norm_eps: float = 1e-6
    vocab_size: int | None = 32000
    max_len: int = 64
    patch_size: int = 16
    d_embed: int = 768
    pad_id: int = 1
    n_prefix: ClassVar[int] = 0  # the patches are pooled without a class token
    ranges: ClassVar = {"pad_id": {"minimum": 0, "maximum": MAX_VOCABULARY}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_embed != self.image_d_model:
            message = f"must equal image_d_model ({self.image_d_model}), got {self.d_embed}"
            raise InputError(message, option="d_embed")


class SigLIP(CLIP):
    """SigLIP: computes the similarities of images and texts from the outputs of two encoders.

    Source: Zhai et al. 2023. A call of the model takes images (B, C, height, width) and token ids
    (S, T), and returns the logits (B, S) of the pairs. The sigmoid of a logit is the probability
    that image and text belong together.

    Attributes:
        logit_bias: Learned number that is added to the scaled cosine similarities.
    """

    config: SigLIPConfig

    def __init__(self, config: SigLIPConfig) -> None:
        super().__init__(config)
        tower = config.image_tower
        self.text_projection = nn.Linear(config.d_model, config.d_embed)
        options = {"n_prefix": 0, "dropout": tower.dropout}  # without a class token
        self.image_embed = patches_from_config(config, tower.d_model, **options)
        self.image_norm = nn.Identity()
        del self.image_projection
        self.image_pool = AttentionPool(tower)
        self._initialize()
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))  # section 3.2
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))

    def encode_image(self, images: Tensor) -> Tensor:
        """Compute the embeddings (B, E) of images (B, C, height, width), not normalized."""
        return self.image_pool(self.image_stack(self.image_embed(images)))

    def encode_text(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the embeddings (S, E) of texts with padding on the right, not normalized.

        The embedding of a text is that of its last position. Each text is first padded to `max_len`
        tokens by `pad_id`, which also replaces the tokens that the mask hides.
        """
        if mask is not None:
            ids = ids.masked_fill(~mask, self.config.pad_id)
        n_missing = max(0, self.config.max_len - ids.shape[1])
        ids = F.pad(ids, (0, n_missing), value=self.config.pad_id)  # (S, max_len)
        x = self.text_stack(self.text_embed(ids, slice(0, ids.shape[1])))  # (S, max_len, D)
        return self.text_projection(x[:, -1])  # (S, E)

    def image_classifier(self) -> ViT:
        """Return a copy of the image encoder as a ViT with `pool="mean"` and a new head."""
        tower = vars(self.config.image_tower)
        sizes = {n: getattr(self.config, n) for n in ("image_size", "patch_size", "n_channels")}
        vit = ViT(ViTConfig(**tower, **sizes, n_classes=1, pool="mean"))
        own = {n.removeprefix("image_"): x for n, x in self.state_dict().items()}
        vit.load_state_dict({n: own.get(n, x) for n, x in vit.state_dict().items()})
        return vit

    def similarity(self, images: Tensor, texts: Tensor) -> Tensor:
        """Compute the logits (B, S) of pairs of embeddings (B, E) and (S, E), in at least fp32."""
        return super().similarity(images, texts) + self.logit_bias


class AttentionPool(nn.Module):
    """Pooling by attention of one learned query, followed by a feed-forward layer.

    Source: Lee et al. 2019, "Set Transformer"; Zhai et al. 2021.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.d_model
        self.probe = nn.Parameter(torch.randn(1, width))
        self.attn = Attention(width, config.n_heads)
        self.norm = norm_from_config(replace(config, bias=True))
        self.ff = FeedForward(width, config.d_ff, activation=config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Pool hidden states x (B, N, D) to one vector (B, D) for each image."""
        y = self.attn(self.probe.expand(x.shape[0], 1, -1), x)  # (B, 1, D)
        return (y + self.ff(self.norm(y)))[:, 0]
