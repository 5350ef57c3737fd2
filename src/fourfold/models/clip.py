"""Two towers with one space: CLIP (Radford et al. 2021), images beside the texts that fit them.

Shapes: B images, C channels, N patches with class token, S texts, T tokens, D width of a tower, E
width of the shared space.
"""

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.cache import look_back
from fourfold.core.config import TransformerConfig, check_positive
from fourfold.core.embeddings import PatchEmbedding, TokenEmbedding
from fourfold.core.stack import Stack, make_norm

# What the towers do not share; what only the text tower may be given.
SHAPE, HEADS = ("d_model", "n_layers", "n_heads", "d_ff"), ("d_head", "d_value", "attn_scale")


@dataclass(frozen=True)
class CLIPConfig(TransformerConfig):
    """A CLIP; the defaults are ViT-B/32 (151,277,313 parameters).

    The inherited fields describe the text tower. The image tower has a shape of its own, in the
    fields that begin with `image_`, and shares the rest.

    Args:
        vocab_size: Of the texts; None in a run's config means: the tokenizer's.
        max_len: Longest text in tokens.
        eos_id: The token a text is read off at, where it first stands; None means the highest
            number of each text, which in OpenAI's vocabulary is the end of the text.
        image_d_model: Width of the image tower.
        image_n_layers: Its blocks.
        image_n_heads: Its heads, each image_d_model / image_n_heads wide.
        image_d_ff: Hidden width of its feed-forward layers.
        image_size: Side of the square image in pixels.
        patch_size: Side of a patch in pixels.
        n_channels: C.
        d_embed: E.
    """

    d_model: int = 512
    n_layers: int = 12
    n_heads: int = 8
    d_ff: int = 2048
    activation: str = "quick_gelu"
    norm_placement: str = "pre"
    norm_eps: float = 1e-5
    dropout: float = 0.0
    vocab_size: int | None = 49408
    max_len: int = 77
    eos_id: int | None = None
    image_d_model: int = 768
    image_n_layers: int = 12
    image_n_heads: int = 12
    image_d_ff: int = 3072
    image_size: int = 224
    patch_size: int = 32
    n_channels: int = 3
    d_embed: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "max_len", "image_size", "patch_size", "n_channels", "d_embed"):
            check_positive(name, getattr(self, name))
        assert self.image_tower  # made once, so that what no tower can be is refused now

    @property
    def image_tower(self) -> TransformerConfig:
        """The image tower's stack."""
        shared = {field.name: getattr(self, field.name) for field in fields(TransformerConfig)}
        own = {name: getattr(self, "image_" + name) for name in SHAPE}
        return TransformerConfig(**{**shared, **dict.fromkeys(HEADS), **own})


class CLIP(nn.Module):
    """Says how well each of some texts fits each of some images."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is known once a model is built"
        self.config = config
        self.text_embed = TokenEmbedding(config, config.vocab_size, config.max_len, "learned")
        self.text_stack = Stack(config)
        self.text_projection = nn.Linear(config.d_model, config.d_embed, bias=False)
        tower = config.image_tower
        size, patch = config.image_size, config.patch_size
        self.image_embed = PatchEmbedding(tower, size, patch, config.n_channels, "learned")
        self.image_embed.patches.register_parameter("bias", None)  # the norm behind it has one
        self.image_norm = make_norm(tower)
        self.image_stack = Stack(tower)
        self.image_projection = nn.Linear(tower.d_model, config.d_embed, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))  # section 2.4
        self._initialise()

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Images (B, C, side, side) and texts (S, T) to scaled cosines (B, S).

        Raises:
            InputError: Images of another size than the config's, or more tokens than `max_len`.
        """
        return self.similarity(self.encode_image(images), self.encode_text(ids, mask))

    def encode_image(self, images: Tensor) -> Tensor:
        """Images to (B, E), of any length: their direction is what counts."""
        x = self.image_stack(self.image_norm(self.image_embed(images)))  # (B, N, D)
        return self.image_projection(x[:, 0])  # (B, E)

    def encode_text(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Texts to (S, E), each read off at its end.

        Args:
            ids: (S, T) int64. Each row holds the end-of-text token.
            mask: (S, T) bool, True = real token. No padding behind the end matters, unless its
                number is higher than that of the end.
        """
        seen, positions = look_back(ids, mask, None, None, causal=True)
        x = self.text_stack(self.text_embed(ids, positions), seen)  # (S, T, D)
        real = ids if mask is None else ids.masked_fill(~mask, -1)
        end = real if self.config.eos_id is None else (real == self.config.eos_id).long()
        rows = torch.arange(len(x), device=x.device)
        return self.text_projection(x[rows, end.argmax(-1)])  # (S, E)

    def similarity(self, images: Tensor, texts: Tensor) -> Tensor:
        """(B, E) and (S, E) of any length to scaled cosines (B, S), never in low precision."""
        with torch.autocast(images.device.type, enabled=False):
            scale = self.scale
            images, texts = (F.normalize(x.to(scale.dtype), dim=-1) for x in (images, texts))
            return scale * (images @ texts.T)

    @property
    def scale(self) -> Tensor:
        """What cosines are multiplied by, in fp32 at least."""
        exact = torch.promote_types(self.log_scale.dtype, torch.float32)
        return self.log_scale.to(exact).exp()

    def _initialise(self) -> None:
        """OpenAI's first weights: normal, with a deviation by the width of the tower; biases 0.

        Their code leaves the image tower's blocks to torch; here both towers have one rule.
        """
        c = self.config
        for name, parameter in self.named_parameters():
            side = "image_" if name.startswith("image_") else ""
            wide, depth = getattr(c, side + "d_model") ** -0.5, getattr(c, side + "n_layers")
            back = wide * (2 * depth) ** -0.5  # what adds to the stream
            stds = {"out": back, "down": back, "up": wide * 0.5**0.5, "gate": wide * 0.5**0.5}
            stds |= {} if side else {"tokens": 0.02, "positions": 0.01}
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:  # patches keep torch's
                nn.init.normal_(parameter, std=stds.get(name.split(".")[-2], wide))
