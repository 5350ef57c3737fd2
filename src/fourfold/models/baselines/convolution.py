"""Causal language models with convolutions: ConvS2S (Gehring et al. 2017) and ByteNet.

Vaswani et al. 2017, Table 1, compare self-attention with such convolutions. ByteNet is by
Kalchbrenner et al. 2016.
Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.config import Init, ModelConfig, TextPositions
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask
from fourfold.core.validation import check_absent, check_positive
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.layers.base_model import Layers
from fourfold.models.causal_lm.model import CausalLM

MAX_DILATION = 2**20  # far above those of published models


@dataclass(frozen=True)
class ConvolutionalLMConfig(ModelConfig):
    """Config of a convolutional language model; the defaults are a small ConvS2S.

    Source: Gehring et al. 2017 (ConvS2S); Kalchbrenner et al. 2016 (ByteNet).

    Args:
        d_model: Width D; must be even for `block` bytenet.
        n_layers: Number of convolutional blocks.
        block: gated (one convolution with a gated linear unit; ConvS2S, section 3.2) or bytenet
            (the convolution has half of the width, between two matrices; ByteNet, section 3.6).
        kernel_size: Width of a kernel in tokens.
        dilations: Distance in tokens between neighbouring taps of a kernel, one for each block. The
            list is repeated if there are more blocks. ByteNet has [1, 2, 4, 8, 16].
        dropout: Dropout probability of the embedding and in each block.
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest sequence in tokens.
        positions: Position embedding: none, learned, sinusoidal or sinusoidal_halves (see
            `CausalLMConfig`).
        tie_embeddings: Use the token embedding as output matrix.
        init: Initialization of embedding and linear layers, a name in `fourfold.layers.init.INITS`.
    """

    d_model: int = 256
    n_layers: int = 8
    block: Literal["gated", "bytenet"] = "gated"
    kernel_size: int = 3
    dilations: tuple[int, ...] = (1,)
    dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    positions: TextPositions = "learned"
    tie_embeddings: bool = True
    init: Init = "vaswani"
    # Fixed values of three fields of `CausalLMConfig`.
    embed_norm: ClassVar = False
    score_cap: ClassVar = None
    logit_cap: ClassVar = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # A list in a file becomes a tuple here; a frozen dataclass allows no plain assignment.
        object.__setattr__(self, "dilations", tuple(self.dilations))
        for dilation in self.dilations or (0,):
            check_positive("dilations", dilation, MAX_DILATION)
        if self.block == "bytenet" and self.d_model % 2:
            raise InputError(f"must be even for bytenet, got {self.d_model}", option="d_model")


class ConvolutionalBlock(nn.Module):
    """Causal convolution with a residual connection, a block of ConvS2S or ByteNet.

    The kernel of a ByteNet block keeps torch's initialization.

    Args:
        dilation: Distance in tokens between neighbouring taps of the kernel.
    """

    def __init__(self, config: ConvolutionalLMConfig, dilation: int) -> None:
        super().__init__()
        width, kernel = config.d_model, config.kernel_size
        self.is_gated = config.block == "gated"
        self.n_padded = dilation * (kernel - 1)
        self.dropout = Dropout(config.dropout)
        if self.is_gated:
            self.conv = nn.Conv1d(width, 2 * width, kernel, dilation=dilation)
            # Keeps the variance, a quarter of which passes through the gates (section 3.5).
            std = (4.0 * (1.0 - config.dropout) / (width * kernel)) ** 0.5
            nn.init.normal_(self.conv.weight, std=std)
            nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
            return
        half = width // 2
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (width, half, half))
        self.reduce = nn.Linear(width, half)
        self.conv = nn.Conv1d(half, half, kernel, dilation=dilation)
        self.expand = nn.Linear(half, width)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Map x (B, T, D) to (B, T, D); `real` (B, T, 1) is True at real tokens, None means all."""
        if self.is_gated:
            y = F.glu(self._convolve(self.dropout(x), real), dim=-1)
            return (x + y) * 0.5**0.5  # keeps the variance
        h = self.reduce(self.norms[0](x).relu())
        h = self._convolve(self.norms[1](h).relu(), real)
        return x + self.dropout(self.expand(self.norms[2](h).relu()))

    def _convolve(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Convolve the sequences x (B, T, C) causally."""
        x = x if real is None else x * real
        return self.conv(F.pad(x.mT, (self.n_padded, 0))).mT


class ConvolutionalStack(Layers):
    """Sequence of convolutional blocks, with the interface of the transformer's `Stack`."""

    def __init__(self, config: ConvolutionalLMConfig) -> None:
        super().__init__()
        dilations = islice(cycle(config.dilations), config.n_layers)
        self.blocks = nn.ModuleList(ConvolutionalBlock(config, d) for d in dilations)

    def forward(self, x: Tensor, mask: Mask = Mask(), *, cache: KVCache | None = None) -> Tensor:
        """Run the blocks over x (B, T, D). Of the mask, only that of padding is used.

        Raises:
            InputError: The mask separates packed documents or has a prefix, or a cache is given.
        """
        reason = "convolutions, which have no keys and cannot separate packed documents"
        check_absent(reason, documents=mask.documents, cache=cache, prefix=mask.prefix)
        real = None if mask.keys is None else mask.keys[:, :, None]
        for block in self.blocks:
            x = block(x, real)
        return x


class ConvolutionalLM(CausalLM):
    """Causal language model with convolutions, without a cache and without packed documents.

    Source: Gehring et al. 2017 (ConvS2S); Kalchbrenner et al. 2016 (ByteNet).
    """

    is_recurrent = True
    stack_class = ConvolutionalStack

    def __init__(self, config: ConvolutionalLMConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]

    def new_cache(self) -> Any:
        """Return None, because the model has no cache. Each decoding step computes all tokens."""
        return None
