"""Our four families as `fourfold fit` trains them: a Task's own step, less the Trainer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.bench.batches import MASKED
from fourfold.bench.shapes import Shape
from fourfold.bench.ways import Way
from fourfold.callbacks.compiled import compile_blocks
from fourfold.models import CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViTConfig
from fourfold.models.cost import forward_flops
from fourfold.tasks import (
    CausalLanguageModeling,
    ImageClassification,
    MaskedLanguageModeling,
    Task,
    Translation,
)


def sizes(shape: Shape, dropout: float) -> dict[str, Any]:
    """What all configs share."""
    return {
        "d_model": shape.d_model,
        "n_layers": shape.n_layers,
        "n_heads": shape.n_heads,
        "d_ff": shape.d_ff,
        "dropout": dropout,
    }


def causal_lm(shape: Shape, dropout: float) -> CausalLanguageModeling:
    """GPT-2."""
    config = CausalLMConfig(
        **sizes(shape, dropout),
        attn_dropout=dropout,
        vocab_size=shape.n_out,
        max_len=shape.length,
    )
    return CausalLanguageModeling(config)


def masked_lm(shape: Shape, dropout: float) -> MaskedLanguageModeling:
    """BERT without its next-sentence head."""
    config = MaskedLMConfig(
        **sizes(shape, dropout),
        attn_dropout=dropout,
        vocab_size=shape.n_out,
        max_len=shape.length,
    )
    return MaskedLanguageModeling(config)


def vit(shape: Shape, dropout: float) -> ImageClassification:
    """ViT with a class token."""
    config = ViTConfig(
        **sizes(shape, dropout),
        attn_dropout=dropout,
        image_size=shape.length,
        patch_size=shape.patch_size,
        n_classes=shape.n_out,
    )
    return ImageClassification(config)


def encoder_decoder(shape: Shape, dropout: float, *, bias: bool = False) -> Translation:
    """Vaswani's, with the positions and the epsilon of Marian, so that it can become one.

    Without smoothing of the labels, which its peers' own losses have not.
    """
    config = EncoderDecoderConfig(
        **sizes(shape, dropout),
        vocab_size=shape.n_out,
        max_len=shape.max_len,
        norm_eps=1e-5,
        positions="sinusoidal_halves",
        output_bias=bias,
    )
    return Translation(config, label_smoothing=0.0)


TASKS: dict[str, Callable[[Shape, float], Task]] = {
    "causal_lm": causal_lm,
    "masked_lm": masked_lm,
    "vit": vit,
    "encoder_decoder": encoder_decoder,
}


def build(family: str, shape: Shape, dropout: float) -> Way:
    """Our model of a family."""
    task = TASKS[family](shape, dropout)
    task.configure_model()
    return Way(task, _mean, compile_ours)


def _mean(task: Task, batch: Any) -> Tensor:
    total, count = task.step(batch)
    return total / count


def compile_ours(model: nn.Module) -> nn.Module:
    """As `fourfold fit --compile true` does."""
    compile_blocks(model)
    return model


def forward_cost(family: str, shape: Shape, batch: Any) -> int:
    """FLOPs of a forward pass of the model over a batch; padding is no work."""
    return COSTS[family](TASKS[family](shape, 0.0).config, shape, batch)


def _rows(config: Any, shape: Shape, batch: Any) -> int:
    return shape.batch * forward_flops(config, shape.length).total


def _hidden_rows(config: Any, shape: Shape, batch: Any) -> int:
    return shape.batch * forward_flops(config, shape.length, scored=MASKED).total


def _image_rows(config: Any, shape: Shape, batch: Any) -> int:
    return shape.batch * forward_flops(config).total


def _pair_rows(config: Any, shape: Shape, batch: Any) -> int:
    # A target of t tokens, BOS and EOS among them, is t - 1 inputs.
    pairs = torch.stack([batch.tgt_mask.sum(1) - 1, batch.src_mask.sum(1)], dim=1).tolist()
    return sum(forward_flops(config, target, source=source).total for target, source in pairs)


COSTS: dict[str, Callable[[Any, Shape, Any], int]] = {
    "causal_lm": _rows,
    "masked_lm": _hidden_rows,
    "vit": _image_rows,
    "encoder_decoder": _pair_rows,
}
