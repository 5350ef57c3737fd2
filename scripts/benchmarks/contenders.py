"""Benchmark contenders: models with their losses, training and evaluation steps."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.analysis.flops import forward_flops
from fourfold.callbacks.runtime.compile_blocks import compile_blocks
from fourfold.layers.base_model import on_meta
from fourfold.models import CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViTConfig
from fourfold.reproduce.interleaved_timing import Call
from fourfold.tasks import (
    CausalLanguageModeling,
    ImageClassification,
    MaskedLanguageModeling,
    Task,
    Translation,
)
from scripts.benchmarks.workloads import MLM_PROBABILITY, Shape

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
COMPILED_SUFFIX = " compiled"  # of the name of a contender


@dataclass(frozen=True)
class Contender:
    """A model with the loss that users of its library train it with."""

    module: nn.Module
    loss: Callable[[Any, Any], Tensor]  # of the module, compiled or not, and a batch
    compile: Callable[[nn.Module], Any] = torch.compile  # as users of its library do

    @property
    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of forward pass and loss in a precision."""
    dtype = DTYPES[precision]
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def training_step(
    contender: Contender, batch: Any, precision: str, device: torch.device, *, compile: bool = False
) -> Call:
    """Return a function that trains one step with fused AdamW."""
    module: Any = contender.module.to(device).train()
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, fused=True)
    module = contender.compile(module) if compile else module

    def step() -> None:
        with autocast(precision, device):
            loss = contender.loss(module, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def evaluation_step(
    contender: Contender, batch: Any, precision: str, device: torch.device, *, compile: bool = False
) -> Call:
    """Return a function that computes the loss of a batch without gradients."""
    module: Any = contender.module.to(device)
    module = contender.compile(module) if compile else module

    def step() -> None:
        contender.module.eval()
        with torch.no_grad(), autocast(precision, device):
            contender.loss(module, batch)

    return step


def fourfold_contender(family: str, shape: Shape, dropout: float) -> Contender:
    """Create fourfold's model of a family, with the step of its Task but without the Trainer."""
    task = TASKS[family](shape, dropout)
    task.configure_model()
    return Contender(task, _mean_loss, _compile_blocks)


def _mean_loss(task: Task, batch: Any) -> Tensor:
    total, count = task.step(batch)
    return total / count


def _compile_blocks(model: nn.Module) -> nn.Module:
    """Compile each block, as `fourfold fit --compile true` does."""
    compile_blocks(model)
    return model


def _sizes(shape: Shape, dropout: float) -> dict[str, Any]:
    names = ("d_model", "n_layers", "n_heads", "d_ff")
    return {name: getattr(shape, name) for name in names} | {"dropout": dropout}


def _text_sizes(shape: Shape, dropout: float) -> dict[str, Any]:
    more = {"attn_dropout": dropout, "vocab_size": shape.n_out, "max_len": shape.length}
    return _sizes(shape, dropout) | more


def llama(shape: Shape, dropout: float) -> CausalLanguageModeling:
    """Create the task of a Llama with tied embeddings and as many parameters as GPT-2."""
    n_kv_heads, d_ff = shape.llama
    config = CausalLMConfig(
        **{**_text_sizes(shape, dropout), "d_ff": d_ff},
        n_kv_heads=n_kv_heads,
        activation="silu",
        feed_forward="glu",
        norm="rms",
        bias=False,
        positions="none",
        rope_theta=10000.0,
    )
    return CausalLanguageModeling(config)


def vit(shape: Shape, dropout: float) -> ImageClassification:
    """Create the task of a ViT with a class token."""
    config = ViTConfig(
        **_sizes(shape, dropout),
        attn_dropout=dropout,
        image_size=shape.length,
        patch_size=shape.patch_size,
        n_classes=shape.n_out,
    )
    return ImageClassification(config)


def encoder_decoder(shape: Shape, dropout: float, *, bias: bool = False) -> Translation:
    """Create the task of the encoder-decoder of Vaswani et al. (2017).

    Positions and norm_eps are those of Marian, so that transformers can read the weights. Labels
    are not smoothed, since the losses of the peers do not smooth them.
    """
    config = EncoderDecoderConfig(
        **_sizes(shape, dropout),
        vocab_size=shape.n_out,
        max_len=shape.max_len,
        norm_eps=1e-5,
        positions="sinusoidal_halves",
        output_bias=bias,
    )
    return Translation(config, label_smoothing=0.0)


TASKS: dict[str, Callable[[Shape, float], Task]] = {
    "causal_lm": lambda *given: CausalLanguageModeling(CausalLMConfig(**_text_sizes(*given))),
    "llama": llama,
    "masked_lm": lambda *given: MaskedLanguageModeling(MaskedLMConfig(**_text_sizes(*given))),
    "vit": vit,
    "encoder_decoder": encoder_decoder,
}


def batch_flops(family: str, shape: Shape, batch: Any) -> int:
    """Return the FLOPs of fourfold's forward pass over a batch, without those of padding."""
    task = TASKS[family](shape, 0.0)
    with on_meta():
        task.configure_model()
    model = task.model
    if family == "encoder_decoder":
        # The last token of a target is not an input of the decoder.
        lengths = torch.stack([batch.tgt_mask.sum(1) - 1, batch.src_mask.sum(1)], dim=1).tolist()
        return sum(
            n_pairs * forward_flops(model, tgt_len, source=src_len).total
            for (tgt_len, src_len), n_pairs in Counter(map(tuple, lengths)).items()
        )
    if family == "vit":
        return shape.batch * forward_flops(model).total
    fraction = MLM_PROBABILITY if family == "masked_lm" else 1.0
    return shape.batch * forward_flops(model, shape.length, head_fraction=fraction).total
