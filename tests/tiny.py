"""A tiny model of every family, in fp64 and without dropout, and one way to run them all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from fourfold.core.attention import attention_backend
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask
from fourfold.core.stack import Stack
from fourfold.models import (
    T5,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    Joined,
    JoinedConfig,
    MaskedLM,
    MaskedLMConfig,
    T5Config,
    ViT,
    ViTConfig,
)

V = 29
SHAPE: dict[str, Any] = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 20, "dropout": 0.0}
LANGUAGE: dict[str, Any] = {**SHAPE, "vocab_size": V, "max_len": 80}
CONFIGS: dict[str, TransformerConfig] = {
    "causal": CausalLMConfig(**LANGUAGE, attn_dropout=0.0),
    "masked": MaskedLMConfig(**LANGUAGE, attn_dropout=0.0, next_sentence=True),
    "encoder_decoder": EncoderDecoderConfig(**LANGUAGE),
    # Distances beyond the last bucket, and more width in the heads than in the stream.
    "t5": T5Config(
        **SHAPE,
        vocab_size=V,
        d_head=5,
        attn_dropout=0.0,
        ff_dropout=0.0,
        n_buckets=8,
        max_distance=7,
        n_decoder_layers=1,
    ),
    # A reader of another kind than the writer, and of another shape.
    "joined": JoinedConfig(
        **LANGUAGE,
        attn_dropout=0.0,
        encoder=MaskedLMConfig(
            d_model=20,
            n_layers=1,
            n_heads=2,
            d_ff=16,
            dropout=0.0,
            attn_dropout=0.0,
            vocab_size=V,
            max_len=81,
        ),
    ),
    "vit": ViTConfig(**SHAPE, image_size=8, patch_size=2, n_channels=2, n_classes=5),
}
MODELS: dict[str, Callable[..., nn.Module]] = {
    "causal": CausalLM,
    "masked": MaskedLM,
    "encoder_decoder": EncoderDecoder,
    "t5": T5,
    "joined": Joined,
    "vit": ViT,
}
# What reads a sequence: a decoder is one too, with a source of its own for each row.
STACKS = {  # of a family with two
    "encoder": ("encoder_decoder", "encoder"),
    "decoder": ("encoder_decoder", "decoder"),
    "t5_encoder": ("t5", "encoder"),
    "t5_decoder": ("t5", "decoder"),
    "joined_encoder": ("joined", "encoder"),
    "joined_decoder": ("joined", "decoder"),
}
DECODERS = ("decoder", "t5_decoder", "joined_decoder")
PAIRS = ("encoder_decoder", "t5", "joined")
READERS = ("causal", "masked", *STACKS, "stack")
CAUSAL = ("causal", *DECODERS)
BACKENDS = ("naive", "sdpa", "flex")  # auto on a CPU in fp64 is sdpa


def build(family: str, **changes: Any) -> Any:
    """A model whose every parameter is noise, so that nothing is hidden by a 0 or a 1."""
    config = CONFIGS[family]
    model = MODELS[family](type(config)(**{**vars(config), **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@contextmanager
def backend(name: str) -> Iterator[None]:
    """One attention backend; FlexAttention on a CPU has no backward pass.

    Eager, it would compile itself anew for each shape, in seconds, were it not told to let it be.
    """
    eager = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    with (
        mock.patch.object(flex_attention, eager, True),
        attention_backend(name),
        torch.set_grad_enabled(name != "flex"),
    ):
        yield


def tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def assert_same(actual: Tensor, expected: Tensor, message: str = "") -> None:
    torch.testing.assert_close(
        actual, expected, rtol=1e-9, atol=1e-9, msg=lambda text: f"{message} {text}"
    )


class Reader:
    """Token ids (B, T) to hidden states (B, T, D), in whatever family."""

    def __init__(self, kind: str) -> None:
        self.kind, self.causal = kind, kind in CAUSAL
        if kind == "stack":  # what a ViT is made of, with patches that may be padded or packed
            self.table = torch.randn(V, SHAPE["d_model"], dtype=torch.float64)
            self.model: Any = Stack(TransformerConfig(**SHAPE, norm_placement="pre")).double()
        else:
            family, self.stack = STACKS.get(kind, (kind, "stack"))
            self.model = build(family)

    def source(self, n_rows: int, length: int = 5) -> dict[str, Tensor]:
        """What a decoder reads besides; nothing for others."""
        if self.kind not in DECODERS:
            return {}
        mask = torch.arange(length) < torch.tensor([[length - i % 3] for i in range(n_rows)])
        return {"src": tokens(n_rows, length), "src_mask": mask}

    def __call__(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Any = None,
        src: Tensor | None = None,
        src_mask: Tensor | None = None,
        src_documents: Tensor | None = None,
    ) -> Tensor:
        if self.kind == "causal":
            return self.model.hidden(ids, mask, cache, documents)
        if self.kind == "masked":
            return self.model.encode(ids, None, mask, documents)
        if self.kind.endswith("encoder"):
            return self.model.encode(ids, mask, documents)
        if self.kind == "stack":
            return self.model(self.table[ids], Mask(keys=mask, documents=documents))
        assert src is not None
        memory = self.model.encode(src, src_mask, src_documents)
        return self.model.decode(
            ids, memory, src_mask, mask, cache,
            src_documents=src_documents, tgt_documents=documents,
        )  # fmt: skip


readers = pytest.mark.parametrize("kind", READERS)
causal_readers = pytest.mark.parametrize("kind", CAUSAL)
backends = pytest.mark.parametrize("name", BACKENDS)
