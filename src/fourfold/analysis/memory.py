"""Estimated memory of a training step, and division of a batch into micro-batches that fit.

Activations are the tensors that autograd stores for the backward pass of a block with a fused
attention kernel. Such a kernel stores no attention weights (T, T), so the memory of activations is
proportional to the number of tokens T.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import torch
from torch import nn

from fourfold.analysis.flops import image_tokens
from fourfold.core.config import TransformerConfig
from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.kernels.cross_entropy import DEVICE_FACTOR, MAX_SLICE_LOGITS
from fourfold.models.contrastive.clip import CLIPConfig
from fourfold.models.recurrent.language_model import RecurrentLMConfig
from fourfold.optim import hidden_matrices

# Number of values that an optimizer stores for each weight. For muon, this is the number of AdamW;
# Muon stores one value for each weight of a hidden matrix.
OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "adadelta": 2, "sgd": 1, "muon": 2}
# Number of values that an LSTM stores for each unit and token, measured on a CPU (not with cuDNN).
LSTM_VALUES_PER_UNIT = 17.4


@dataclass(frozen=True)
class Memory:
    """Peak memory of one device in a training step, in bytes.

    The peak is at the end of a forward pass, when all activations are stored. At that time, the
    gradients of earlier micro-batches are stored as well.

    Args:
        weights: Bytes of the weights, plus their low-precision copies if the precision is mixed.
        gradients: Bytes of the gradients of the trained weights, plus the copy that DDP holds if
            the training uses DDP.
        optimizer: Bytes of the states of the optimizer, such as the two averages of Adam.
        activations: Bytes that the blocks store for the backward pass.
        loss: Bytes of the tensors that the loss stores, such as a slice of the logits.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int

    @property
    def total(self) -> int:
        """Sum of weights, gradients, optimizer states, activations and loss, in bytes."""
        return sum(astuple(self))


def training_memory(
    config: TransformerConfig | RecurrentLMConfig,
    n_parameters: int,
    tokens: int,
    source: int = 0,
    *,
    n_trained: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    n_hidden: int = 0,
    replicated: bool = False,
) -> Memory:
    """Estimate the memory of a training step on one device.

    Args:
        n_parameters: Number of parameters of the whole model.
        tokens: Number of tokens of a micro-batch with its padding. This is the number of target
            tokens for an encoder-decoder, of text tokens for a CLIP, and of patches and prefix
            tokens for a ViT.
        source: Number of source tokens of the same micro-batch for an encoder-decoder of text. For
            a CLIP or an image-to-text model, number of patches and class tokens of the images. 0
            for other models.
        n_trained: Number of parameters that are not frozen. None means all.
        precision: Lightning's name of the precision, such as bf16-mixed.
        optimizer: Name of the optimizer, a key of `OPTIMIZER_STATES`.
        n_hidden: Number of parameters in the hidden matrices that muon updates by Muon. Other
            optimizers ignore it.
        replicated: Also count the copy of the gradients that DDP holds.

    Raises:
        InputError: The precision or the optimizer is unknown.

    Example:
        >>> from fourfold.models import ViTConfig
        >>> memory = training_memory(ViTConfig(), 86_567_656, tokens=128 * 197)
        >>> f"{memory.total / 2**30:.1f} GiB"
        '15.2 GiB'
    """
    check_choice("optimizer", optimizer, tuple(OPTIMIZER_STATES))
    weight, compute = element_sizes(precision)
    copies = weight + (compute if compute != weight else 0)  # autocast caches the cast weights
    n_trained = n_parameters if n_trained is None else n_trained
    return Memory(
        weights=n_parameters * copies,
        gradients=n_trained * weight * (2 if replicated else 1),
        optimizer=weight * _n_states(optimizer, n_trained, n_hidden),
        activations=activation_bytes(config, tokens, source, precision),
        loss=_loss_bytes(config, tokens, source, compute),
    )


def state_memory(model: nn.Module, precision: str, optimizer: str) -> int:
    """Count the bytes of weights, gradients and optimizer states of a model.

    The result is a lower bound of the memory of training, without activations and loss.

    Args:
        precision: Lightning's name of the precision, such as bf16-mixed.
        optimizer: Name of the optimizer, a key of `OPTIMIZER_STATES`.

    Raises:
        InputError: The precision is unknown.
    """
    weight, _ = element_sizes(precision)
    n_parameters = sum(p.numel() for p in model.parameters())
    n_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    n_hidden = sum(p.numel() for p in hidden_matrices(model))
    return weight * (n_parameters + n_trained + _n_states(optimizer, n_trained, n_hidden))


def _n_states(optimizer: str, n_trained: int, n_hidden: int) -> int:
    """Count the values that an optimizer stores for all trained parameters."""
    return n_trained * OPTIMIZER_STATES[optimizer] - (n_hidden if optimizer == "muon" else 0)


def format_bytes(count: float) -> str:
    """Format a number of bytes with the largest unit of KiB, MiB and GiB that gives at least 1.

    Example:
        >>> format_bytes(3 * 2**19), format_bytes(2**34)
        ('1.50 MiB', '16.00 GiB')
    """
    for unit in ("GiB", "MiB"):
        size = 2 ** {"GiB": 30, "MiB": 20}[unit]
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count / 2**10:,.2f} KiB"


def element_sizes(precision: str) -> tuple[int, int]:
    """Return the size of an element of the weights, and of an element of a matrix product's input.

    Args:
        precision: Lightning's name of the precision, such as bf16-mixed, which stores weights in
            fp32 and multiplies matrices in bf16.

    Returns:
        Two sizes in bytes, such as (4, 2) for bf16-mixed.

    Raises:
        InputError: The precision is unknown.
    """
    weights, compute = PRECISIONS[canonical_precision(precision, "precision")]
    return getattr(torch, weights).itemsize, getattr(torch, compute).itemsize


def activation_bytes(
    config: TransformerConfig | RecurrentLMConfig,
    tokens: int,
    source: int = 0,
    precision: str = "32-true",
) -> int:
    """Estimate the bytes that all blocks store for the backward pass of a micro-batch.

    Args:
        tokens: Number of tokens of the micro-batch with its padding. The argument `tokens` of
            `training_memory` tells which tokens of each model count.
        source: Number of source tokens of an encoder-decoder, or of image tokens of a CLIP or an
            image-to-text model. 0 for other models.
        precision: Lightning's name of the precision, such as bf16-mixed.
    """
    sizes = element_sizes(precision)
    if isinstance(config, RecurrentLMConfig):
        # The workspace of an LSTM stays in fp32 under autocast.
        values = config.d_model + LSTM_VALUES_PER_UNIT * config.n_layers * config.hidden_size
        return round(tokens * max(sizes[0], 4) * values)
    if isinstance(config, CLIPConfig):
        images = _stack_bytes(config.image_tower, source, 0, *sizes)
        return images + _stack_bytes(config, tokens, 0, *sizes)
    n_layers = getattr(config, "n_decoder_layers", None) or config.n_layers
    decoder = getattr(config, "decoder", None) or replace(config, n_layers=n_layers)
    total = _stack_bytes(decoder, tokens, source, *sizes)
    if source:
        total += _stack_bytes(getattr(config, "encoder", config), source, 0, *sizes)
    return total


def _stack_bytes(
    config: TransformerConfig, tokens: int, source: int, wide: int, narrow: int
) -> int:
    """Count the bytes that autograd stores for the blocks of an encoder or a decoder."""
    width = config.d_model
    is_mixed = narrow != wide  # autocast copies the input of a matrix product
    dropout_mask = width if config.dropout else 0  # one byte for each element

    # Per token: input of a norm, and its output in the data type of matrix products.
    norm = width * ((narrow if config.norm_placement == "inside" else wide) + narrow)
    # Queries and keys are also stored before their norm.
    n_stored = 1 if config.qk_norm == "none" else 2
    head = (n_stored * config.head_width + config.value_width) * narrow
    heads = config.n_heads * head  # queries and outputs
    kv_heads = config.kv_heads * head  # keys and values
    # The output has the memory order of the queries. It is copied unless this is the order of the
    # projection, which a norm of each head, or a rotation, changes.
    output = config.n_heads * config.value_width * narrow
    cross_copy = output if config.qk_norm == "head" else 0
    copy = output if config.rope_theta is not None else cross_copy
    # Input of a second norm, and output before its learned factor, of each sub-layer.
    more = (config.norm_placement == "sandwich") + (config.layer_scale is not None)
    is_gated = config.feed_forward == "glu"
    # Output of the matrix and of the activation; ReLU's gradient needs only the latter.
    hidden_layers = 4 if is_gated else 2
    if config.activation == "relu" and not config.ff_dropout:
        hidden_layers -= 1
    hidden = config.d_ff * (hidden_layers * narrow + (config.ff_dropout > 0.0))
    n_sublayers = 3 if source else 2
    block = tokens * n_sublayers * more * width * narrow
    if config.parallel and not (is_mixed and config.norm_placement == "inside"):
        block -= tokens * (n_sublayers - 1) * width * wide  # the sub-layers have the same input
    block += tokens * (copy + heads + kv_heads + 2 * norm + hidden + 2 * dropout_mask)
    if source:
        cast = width * narrow if is_mixed else 0
        block += (
            tokens * (heads + cross_copy)
            + source * kv_heads
            + tokens * (norm + dropout_mask)
            + source * cast
        )
    final_norm = tokens * wide if config.norm_placement != "post" else 0
    memory = 0 if is_mixed else source * narrow
    return config.n_layers * block + width * (final_norm + memory)


def _loss_bytes(
    config: TransformerConfig | RecurrentLMConfig, tokens: int, source: int, compute: int
) -> int:
    """Estimate the bytes that the loss stores."""
    if isinstance(config, CLIPConfig):
        return 2 * 3 * 4 * (source // image_tokens(config)) ** 2
    rows = getattr(config, "vocab_size", None)
    if rows is None or not getattr(config, "head", True):  # no vocabulary head
        return 0
    logits = tokens * rows
    slice_ = (compute + 2 * 4) * min(DEVICE_FACTOR * MAX_SLICE_LOGITS, logits)
    return slice_ + tokens * config.d_model * compute + 4 * rows * config.d_model


def split_batch(
    total: int, devices: int, fits: Callable[[int], bool], *, exact: bool
) -> tuple[int, int]:
    """Divide the batch of an optimizer step into the largest micro-batches that fit into memory.

    A batch is counted in samples or in tokens.

    Args:
        total: Number of samples or tokens in an optimizer step on all devices together.
        devices: Number of devices.
        fits: Function of the number of samples or tokens of a micro-batch, which returns True if
            the micro-batch fits into the memory of one device.
        exact: True for samples: micro-batch x accumulation x devices must equal `total`. False for
            tokens: the size of a micro-batch is rounded down, so an optimizer step may have fewer
            than `total` tokens.

    Returns:
        Size of a micro-batch, and number of micro-batches that a device accumulates in an optimizer
        step.

    Raises:
        InputError: There are fewer samples or tokens than devices, `total` samples are not
            divisible by `devices`, or no micro-batch fits.
    """
    if devices < 1 or total < devices or (exact and total % devices):
        raise InputError(
            f"must divide the global batch of {total}, got {devices}", option="--devices"
        )
    share = total // devices
    for accumulation in range(1, share + 1):
        divides = not exact or share % accumulation == 0
        if divides and fits(share // accumulation):
            return share // accumulation, accumulation
    raise InputError("must be larger: not even the smallest micro-batch fits", option="--memory")
