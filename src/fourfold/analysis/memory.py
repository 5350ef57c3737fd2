"""Estimated memory of a training step, and division of a batch into micro-batches that fit.

The forward pass runs on tensors without data (torch's FakeTensorMode), and the bytes of the tensors
that autograd would store for the backward pass are added. The device of these tensors is a GPU, and
the attention kernel is a fused one, which stores no attention weights (T, T).
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from fourfold.core.attention import attention_backend
from fourfold.core.block import Block
from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.kernels.cross_entropy import DEVICE_FACTOR, MAX_SLICE_LOGITS
from fourfold.layers.base_model import Model
from fourfold.layers.heads import VocabularyHead
from fourfold.optim import hidden_matrices

# Number of values that an optimizer stores for each weight. For muon, this is the number of AdamW;
# Muon stores one value for each weight of a hidden matrix.
OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "adadelta": 2, "sgd": 1, "muon": 2}
ATTENTION = ("attn", "cross_attn")  # names of the attention modules of a block
# Rows and tokens of a traced recurrent model, whose activations are linear in both.
RECURRENT_ROWS, RECURRENT_LENGTH = 4, 32


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
    model: Model,
    rows: float,
    *,
    length: int | None = None,
    source: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    replicated: bool = False,
    head_fraction: float = 1.0,
) -> Memory:
    """Estimate the memory of a training step on one device.

    Args:
        rows: Number of rows of a micro-batch: sequences, sentence pairs or images. It may be a
            fraction, for a micro-batch of a number of tokens.
        length: Number of tokens of a row, as in `Model.example_inputs`.
        source: Number of source tokens of a row.
        precision: Lightning's name of the precision, such as bf16-mixed.
        optimizer: Name of the optimizer, a key of `OPTIMIZER_STATES`.
        replicated: Also count the copy of the gradients that DDP holds.
        head_fraction: Fraction of the tokens whose logits are computed, as in `forward_flops`.

    Example:
        >>> from fourfold.models import create
        >>> model = create("vit_base_patch16_224", device="meta")
        >>> f"{training_memory(model, 128).total / 2**30:.1f} GiB"
        '16.7 GiB'
    """
    check_choice("optimizer", optimizer, tuple(OPTIMIZER_STATES))
    precision = canonical_precision(precision, "precision")
    weight, compute = (getattr(torch, name) for name in PRECISIONS[precision])
    fixed, by_row = _activation_bytes(model, length, source, precision)
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    n_states = sum(trained) * OPTIMIZER_STATES[optimizer]
    if optimizer == "muon":
        n_states -= sum(p.numel() for p in hidden_matrices(model))
    return Memory(
        # Autocast caches the cast weights, which do not depend on the number of rows.
        weights=sum(p.numel() for p in model.parameters()) * weight.itemsize + fixed,
        gradients=sum(trained) * weight.itemsize * (2 if replicated else 1),
        optimizer=n_states * weight.itemsize,
        activations=round(rows * by_row),
        loss=_loss_bytes(model, rows * head_fraction, length, compute.itemsize, weight != compute),
    )


def format_bytes(count: float) -> str:
    """Format a number of bytes with the largest unit of KiB, MiB and GiB that gives at least 1."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count / 2**10:,.2f} KiB"


def _activation_bytes(model: Model, *settings: Any) -> tuple[int, float]:
    """Count the bytes once, and for each row, at the end of a forward pass up to the head.

    With activation checkpointing, one block at a time also stores its activations again.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    modes = tuple(block.recompute for block in blocks)
    fixed, by_row = _stored_bytes(model, *settings, modes)
    n_again = sum(mode != "none" for mode in modes)
    if not n_again:
        return fixed, by_row
    for block in blocks:
        block.recompute = "none"
    _, all_by_row = _stored_bytes(model, *settings, ("none",) * len(blocks))
    for block, mode in zip(blocks, modes, strict=True):
        block.recompute = mode
    return fixed, by_row + (all_by_row - by_row) / n_again


@lru_cache(maxsize=16)
def _stored_bytes(
    model: Model, length: int | None, source: int | None, precision: str, modes: tuple[str, ...]
) -> tuple[int, float]:
    """Count the bytes that autograd stores once, and for each row, in a pass up to the head."""
    fake = not model.is_recurrent  # a fake LSTM does not show the workspace of its kernel
    traced, n_rows = (length, 1) if fake else (RECURRENT_LENGTH, RECURRENT_ROWS)
    inputs = (model.example_inputs(traced, source, n) for n in (n_rows, 2 * n_rows))
    first, second = (_trace(model, x, precision, fake) for x in inputs)
    by_row = (second - first) / n_rows
    factor = 1 if fake else (length or model.config.max_len) / RECURRENT_LENGTH
    return 2 * first - second, by_row * factor


def _trace(model: Model, inputs: tuple[Tensor, ...], precision: str, fake: bool) -> int:
    """Count the bytes of all tensors that autograd stores for these inputs, but for the weights."""
    weight, compute = (getattr(torch, name) for name in PRECISIONS[precision])
    device = "cuda" if fake else "cpu"
    storages: dict[int, torch.UntypedStorage] = {}

    def zeros(x: Tensor) -> Tensor:
        dtype = weight if x.is_floating_point() else x.dtype
        return torch.zeros(x.shape, dtype=dtype, device=device).requires_grad_(x.requires_grad)

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with ExitStack() as context:
        context.callback(model.train, model.training)
        if fake:
            context.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        given = *model.named_buffers(), *model.named_parameters()
        tensors = {name: zeros(x) for name, x in given}
        context.enter_context(attention_backend("sdpa"))
        context.enter_context(_FusedAttention())
        context.enter_context(saved_tensors_hooks(pack, lambda x: x))
        for layer in _recomputed(model):  # torch stores their inputs without the hooks
            hook = layer.register_forward_pre_hook(lambda _, given: (pack(given[0]), None)[1])
            context.enter_context(hook)
        # torch.autocast refuses "cuda" on a machine without a GPU.
        torch.set_autocast_enabled(device, weight != compute)
        torch.set_autocast_dtype(device, compute)
        context.callback(torch.set_autocast_enabled, device, False)
        context.callback(torch.clear_autocast_cache)
        context.callback(vars(model).pop, "forward", None)
        if isinstance(getattr(model, "head", None), VocabularyHead):  # its loss stores no logits
            model.forward = model.hidden  # type: ignore[method-assign]
        functional_call(model.train(), tensors, tuple(map(zeros, inputs)))
    own = {x.untyped_storage()._cdata for x in tensors.values()}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in own)


def _recomputed(model: Model) -> list[nn.Module]:
    """Return the modules that run again in the backward pass."""
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    whole = [block for block in blocks if block.recompute == "block"]
    attention = [block for block in blocks if block.recompute == "attention"]
    return whole + [layer for b in attention for n, layer in b.named_children() if n in ATTENTION]


class _FusedAttention(TorchFunctionMode):
    """Mode in which attention stores what a fused kernel on a GPU stores, for any mask."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        device = args[0].device.type
        dtype = args[0].dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return _Kernel.apply(*(x.to(dtype) for x in args[:3]))


class _Kernel(torch.autograd.Function):
    """Attention that stores queries, keys, values, output and a number for each query and head."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        same = q.shape[-1] == v.shape[-1]  # the output has the memory order of the queries
        y = torch.empty_like(q) if same else q.new_empty(*q.shape[:-1], v.shape[-1])
        ctx.save_for_backward(q, k, v, y, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return y


def _loss_bytes(model: Model, rows: float, length: int | None, compute: int, is_mixed: bool) -> int:
    """Estimate the bytes that the loss stores.

    The cross-entropy of tokens stores a slice of the logits, two fp32 buffers of its size, the
    gradients of hidden states and output matrix, and under autocast a copy of the matrix. The
    contrastive loss stores the logits of all images with all texts, in both directions.
    """
    head = getattr(model, "head", None)
    if hasattr(model, "similarity"):
        return round(2 * 3 * 4 * rows**2)
    if not isinstance(head, VocabularyHead):
        return 0
    vocab_size, width = head.weight.shape
    tokens = round(rows * (length or model.config.max_len))
    slice_ = (compute + 2 * 4) * min(DEVICE_FACTOR * MAX_SLICE_LOGITS, tokens * vocab_size)
    return slice_ + tokens * width * compute + (4 + compute * is_mixed) * vocab_size * width


def split_batch(
    total: int, devices: int, fits: Callable[[int], bool], *, exact: bool
) -> tuple[int, int]:
    """Divide the batch of an optimizer step into the largest micro-batches that fit into memory.

    Args:
        total: Number of samples or tokens in an optimizer step on all devices together.
        fits: Function that returns True if a micro-batch of a number of samples or tokens fits.
        exact: True for samples: micro-batch x accumulation x devices must equal `total`. False for
            tokens: the size of a micro-batch is rounded down.

    Returns:
        Size of a micro-batch, and number of micro-batches that a device accumulates in a step.

    Raises:
        InputError: There are fewer samples or tokens than devices, `total` samples are not
            divisible by `devices`, or no micro-batch fits.
    """
    if devices < 1 or total < devices or (exact and total % devices):
        message = f"must divide the global batch of {total}, got {devices}"
        raise InputError(message, option="--devices")
    share = total // devices
    for accumulation in range(1, share + 1):
        if (not exact or share % accumulation == 0) and fits(share // accumulation):
            return share // accumulation, accumulation
    raise InputError("must be larger: not even the smallest micro-batch fits", option="--memory")
