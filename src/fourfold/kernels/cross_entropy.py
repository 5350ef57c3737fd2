"""Cross-entropy of a large vocabulary, and its gradients, computed from slices of the logits.

A slice is a range of tokens. A tile is a range of vocabulary entries within a slice.
Shapes: N tokens, n tokens of a slice, D model width, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.errors import InputError

IGNORE_INDEX = -100
# 128 MiB in bf16. Each slice adds its part to the (V, D) gradient. With smaller slices, these
# additions would take as long as the matrix products.
MAX_SLICE_LOGITS = 2**26
# On a CPU, a tile stays in the cache of the processor between its matrix product and its softmax.
TILE_LOGITS_CPU = 2**22
# On other devices, a tile is a whole slice, and its sizes are multiples of these numbers: products
# with other sizes, such as the 50,257 tokens of GPT-2, take longer on a GPU.
VOCABULARY_MULTIPLE = 64
TOKEN_MULTIPLE = 128
# Factor on `MAX_SLICE_LOGITS` there. Products of fewer tokens leave multiprocessors of a GPU idle.
DEVICE_FACTOR = 2


# Target distribution of a token after label smoothing, and factor of the z-loss: probability of the
# target minus that of any other token; probability of each token other than the target and the
# padding token; padding token, whose probability is 0, or None; and factor on the square of the
# logsumexp of the logits, which is added to the loss.
LossTerms = tuple[float, float, int | None, float]


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy in eager mode; the arguments are those of `cross_entropy_and_gradients`.

    The forward pass computes the gradients. The backward pass multiplies them by the incoming
    gradient in place.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        total, *ctx.gradients = cross_entropy_and_gradients(*inputs)
        ctx.save_for_backward(*inputs[:5])
        ctx.settings = inputs[5:]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only with create_graph=True
            message = "has no second derivative; use F.cross_entropy(model(ids), ...) or torch.func"
            raise InputError(f"{message} in its place", option="linear_cross_entropy")
        inputs = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward pass: the first scaled the gradients in place
            gradients = cross_entropy_and_gradients(*inputs, *ctx.settings)[1:]
        return _scaled(gradients, grad, inputs, ctx.settings[-3:], Tensor.mul_)


def cross_entropy_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
    extra: float,
    elsewhere: float,
    pad_id: int | None,
    z_loss: float,
    dtype: torch.dtype | None,
    needs_grad: bool,
    needs_weight: bool,
    needs_losses: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the sum of the weighted losses and its gradients, one slice of the logits at a time.

    `hidden` is (N, D), `weight` (V, D), `bias` (V,) or None, and `targets` and `weights` are (N,).
    The next four arguments are those of `LossTerms`, `dtype` that of the products under autocast.
    The results are the sum, its gradients with respect to `hidden`, `weight` and `bias`, and the
    loss of each target, which is the gradient with respect to `weights`. A tensor that is not
    needed is empty; `needs_weight` is False for a frozen output matrix.
    """
    check_targets(targets, len(weight))
    x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
    slices = even_slices(x, w)
    n_rows = max((rows.stop - rows.start for rows in slices), default=0)
    vocab_size = width = len(w)
    if runs_on_cpu(x):
        width = min(len(w), max(1, TILE_LOGITS_CPU // max(1, n_rows)))
    elif padding := -len(w) % VOCABULARY_MULTIPLE:
        w = F.pad(w, (0, 0, 0, padding))
        bias = None if bias is None else F.pad(bias, (0, padding))
        width = len(w)
    row_weights = (targets != IGNORE_INDEX).to(sum_dtype)
    if weights is not None:
        row_weights *= weights
    columns = _ranges(len(w), width)
    # All slices use the same buffers: an allocation takes longer than one pass over the elements.
    # Without gradients, all tiles share the memory of one.
    tiles = x.new_empty(n_rows * (len(w) if needs_grad else width))
    scratch = x.new_empty(n_rows * width if x.dtype != sum_dtype else 0, dtype=sum_dtype)
    terms = (extra, elsewhere, pad_id, z_loss)
    run = _Run(x, w, bias, targets, row_weights, terms, columns, vocab_size, tiles, scratch)
    gradients = _Gradients(run, needs_weight) if needs_grad else None
    total = torch.zeros((), dtype=sum_dtype, device=x.device)
    losses = x.new_empty(len(x) if needs_losses else 0, dtype=sum_dtype)
    with torch.autocast(x.device.type, enabled=False):
        for rows in slices:
            part = _softmax(run, rows, needs_grad)
            total += (part.losses * row_weights[rows]).sum()
            if needs_losses:
                losses[rows] = part.losses * (targets[rows] != IGNORE_INDEX)
            if gradients is not None:
                gradients.add(part)
    empty = total.new_empty
    if gradients is None:
        return total, empty(0), empty(0), empty(0), losses
    both = gradients.weight, gradients.bias  # of the padded vocabulary
    d_weight, d_bias = (empty(0) if grad is None else grad[:vocab_size] for grad in both)
    return total, gradients.hidden, d_weight, d_bias, losses


class _Run(NamedTuple):
    """Inputs of the computation in the data type of the products, and its buffers."""

    x: Tensor  # (N, D)
    w: Tensor  # (V, D), V padded on other devices than a CPU
    bias: Tensor | None
    targets: Tensor
    row_weights: Tensor  # 0 for an ignored target
    terms: LossTerms
    columns: list[slice]  # vocabulary range of each tile
    vocab_size: int  # without padding
    tiles: Tensor
    scratch: Tensor  # a tile in the data type of the sums; empty if that is the type of the tiles


class _Slice(NamedTuple):
    """Losses of the n tokens of a slice, and their softmax in the form of tiles and factors.

    Let z be the logits of a tile and m their maximum for each token; on other devices than a CPU,
    m is their logsumexp. The tile stores exp(z - m). Its factor is exp(m - logsumexp of all logits)
    times the weight of the token and, with a z-loss, 1 + 2 z_loss logsumexp(z). The product of tile
    and factor is the softmax in the gradient. The gradients apply the factors outside of the matrix
    products, which saves a second pass over the logits.

    The target distribution q of a token sums to 1. The probability of the target is `elsewhere` +
    `extra`, that of `pad_id` is 0, and that of any other token is `elsewhere`. The loss is
    logsumexp(z) - sum(q z) + z_loss logsumexp(z)^2, and its gradient with respect to z is
    (1 + 2 z_loss logsumexp(z)) softmax(z) - q.
    """

    rows: slice
    losses: Tensor  # (n,) without the weights of the tokens
    tiles: list[Tensor]  # (n, number of columns)
    factors: Tensor  # (tiles, n)
    target_entries: list[Tensor]  # (n,) entries of the targets in a tile, before rounding


def _softmax(run: _Run, rows: slice, needs_grad: bool) -> _Slice:
    """Compute losses and softmax of a slice."""
    x, targets, row_weights = run.x[rows], run.targets[rows], run.row_weights[rows]
    extra, elsewhere, pad_id, z_loss = run.terms
    on_cpu = runs_on_cpu(x)
    tiles, target_entries, shifts, sums = [], [], [], []  # m is the shift
    expected_logit = torch.zeros_like(row_weights)  # sum(q z)
    for columns in run.columns:
        size = len(x) * (columns.stop - columns.start)
        start = len(x) * columns.start if needs_grad else 0
        z = tile = run.tiles[start : start + size].view(len(x), -1)
        torch.mm(x, run.w[columns].T, out=tile)
        if len(run.scratch):
            z = run.scratch[:size].view_as(tile).copy_(tile)
        if run.bias is not None:
            z += run.bias[columns]
        index, inside = _target_columns(targets, columns)
        expected_logit += extra * z.gather(1, index).squeeze(1) * inside
        if elsewhere:
            expected_logit += elsewhere * z.sum(-1)
            if pad_id is not None and columns.start <= pad_id < columns.stop:
                expected_logit -= elsewhere * z[:, pad_id - columns.start]
        if on_cpu:
            shift = z.amax(-1, keepdim=True)
            sums.append(z.sub_(shift).exp_().sum(-1))
            target_entries.append(z.gather(1, index).squeeze(1))
            if z is not tile and needs_grad:
                tile.copy_(z)
        else:  # fewer passes, since no cache holds the tile
            z[:, run.vocab_size :] = float("-inf")
            log_p = z.log_softmax(-1)
            shift = z[:, :1] - log_p[:, :1]
            sums.append(torch.ones_like(expected_logit))
            target_entries.append(log_p.gather(1, index).squeeze(1).exp())
            if needs_grad:
                torch.exp(log_p, out=tile)
        shifts.append(shift.squeeze(1))
        tiles.append(tile)
    stacked = torch.stack(shifts)  # (tiles, n)
    logsumexp = (stacked + torch.stack(sums).log()).logsumexp(0)
    losses = logsumexp - expected_logit
    factors = (stacked - logsumexp).exp() * row_weights
    if z_loss:
        losses += z_loss * logsumexp.square()
        factors *= 1.0 + 2.0 * z_loss * logsumexp
    return _Slice(rows, losses, tiles, factors, target_entries)


def _target_columns(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Find the columns (n, 1) of the targets in a tile, and which targets (n,) are in the tile."""
    index = targets - columns.start
    inside = (index >= 0) & (index < columns.stop - columns.start)
    return index.clamp(0, columns.stop - columns.start - 1)[:, None], inside


class _Gradients:
    """Gradients of the sum of the losses, to which each slice adds its part, in fp32 or fp64.

    `weight` is None if it is not needed, and `bias` without a bias.
    """

    def __init__(self, run: _Run, needs_weight: bool) -> None:
        self.run = run
        dtype = run.row_weights.dtype
        self.hidden = torch.zeros_like(run.x, dtype=dtype)
        self.weight = torch.zeros_like(run.w, dtype=dtype) if needs_weight else None
        self.bias = None if run.bias is None else torch.zeros_like(run.bias, dtype=dtype)

    def add(self, part: _Slice) -> None:
        """Add the gradients of the loss of a slice, whose tiles are changed in place."""
        run, rows = self.run, part.rows
        extra, elsewhere, pad_id, _ = run.terms
        targets, row_weights = run.targets[rows], run.row_weights[rows]
        remaining = self._subtract_targets(part, extra * row_weights)
        x = run.x[rows].to(self.hidden.dtype)
        hidden = self.hidden[rows]
        for columns, tile, factor in zip(run.columns, part.tiles, part.factors, strict=True):
            hidden += torch.mm(tile, run.w[columns]) * factor[:, None]
            if self.weight is not None:
                self.weight[columns] += torch.mm(tile.T, (x * factor[:, None]).to(tile.dtype))
            if self.bias is not None:
                self.bias[columns] += torch.mm(tile.T, factor[:, None].to(tile.dtype)).squeeze(1)
        self._add_for_tokens(hidden, x, -remaining, targets.clamp(min=0))
        if elsewhere:
            uniform = -elsewhere * row_weights
            hidden += torch.outer(uniform, run.w.sum(0, dtype=x.dtype))
            if self.weight is not None:
                self.weight += uniform @ x
            if self.bias is not None:
                self.bias += uniform.sum()
            if pad_id is not None:
                self._add_for_tokens(hidden, x, -uniform, torch.full_like(targets, pad_id))

    def _subtract_targets(self, part: _Slice, remaining: Tensor) -> Tensor:
        """Subtract `remaining` (n,) from the softmax of targets predicted with confidence.

        Return what is still to be subtracted: 0 where the largest probability exceeds 0.25.
        """
        # The gradient of a confident prediction is a small difference of softmax and target, which
        # must be computed before the result is rounded to low precision.
        run, rows = self.run, part.rows
        parts = zip(run.columns, part.tiles, part.target_entries, part.factors, strict=True)
        for columns, tile, entry, factor in parts:
            index, inside = _target_columns(run.targets[rows], columns)
            likely = inside & (factor > 0.25 * run.row_weights[rows])
            subtrahend = torch.where(likely, remaining / factor, 0.0)
            target = torch.arange(len(index), device=index.device), index.squeeze(1)
            tile[target] = (entry - subtrahend).to(tile.dtype)
            remaining = torch.where(likely, 0.0, remaining)
        return remaining

    def _add_for_tokens(self, hidden: Tensor, x: Tensor, grad: Tensor, tokens: Tensor) -> None:
        """Add the gradients `grad` (n,) that pass through one logit per token, in place."""
        hidden += grad[:, None] * self.run.w[tokens]
        if self.weight is not None:
            self.weight.index_add_(0, tokens, grad[:, None] * x)
        if self.bias is not None:
            self.bias.index_add_(0, tokens, grad)


# Compiled code calls this operator: torch.compile would unroll the loop over the slices.
operator = torch.library.custom_op(
    "fourfold::linear_cross_entropy", cross_entropy_and_gradients, mutates_args=()
)


@operator.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    targets, _, _, _, _, _, dtype, needs_grad, needs_weight, needs_losses = inputs
    x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
    empty = x.new_empty(0, dtype=sum_dtype)
    gradients = [
        torch.empty_like(given, dtype=sum_dtype) if given is not None and needed else empty.clone()
        for given, needed in ((x, needs_grad), (w, needs_weight), (bias, needs_grad))
    ]
    losses = x.new_empty(targets.shape if needs_losses else 0, dtype=sum_dtype)
    return x.new_empty((), dtype=sum_dtype), *gradients, losses


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.needs = inputs[-3:]


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    inputs, gradients = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    return _scaled(gradients, grad, inputs, ctx.needs, Tensor.mul)


operator.register_autograd(_backward, setup_context=_save)


def _scaled(
    gradients: Sequence[Tensor],
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    needs: tuple[bool, bool, bool],
    multiply: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor | None, ...]:
    """Multiply the gradients by the incoming one, and convert them to the types of the inputs.

    The result has one entry for each argument of `cross_entropy_and_gradients`.
    """
    # The product is in fp32 or fp64, because bf16 cannot represent 1 / (number of tokens).
    hidden, weight, bias, _, weights = inputs
    needs_grad, needs_weight, needs_losses = needs
    learned = (hidden, weight, bias, weights), (needs_grad, needs_weight, needs_grad, needs_losses)
    scaled = [
        multiply(total, grad).to(given.dtype) if given is not None and needed else None
        for total, given, needed in zip(gradients, *learned, strict=True)
    ]
    return *scaled[:3], None, scaled[3], *[None] * 8


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    dtype: torch.dtype | None,
    logit_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of each target and the most likely token of each position, in slices."""
    check_targets(targets, len(weight))
    x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
    nll = torch.empty(len(x), dtype=sum_dtype, device=x.device)
    prediction = torch.empty(len(x), dtype=torch.long, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        for rows in even_slices(x, w):
            logits = torch.mm(x[rows], w.T).to(sum_dtype)
            if bias is not None:
                logits += bias
            logits = cap(logits, logit_cap)
            # Targets of IGNORE_INDEX, which is the default of `ignore_index`, get 0.
            nll[rows] = F.cross_entropy(logits, targets[rows], reduction="none")
            prediction[rows] = logits.argmax(-1)
    return nll, prediction


score_operator = torch.library.custom_op("fourfold::token_scores", score_tokens, mutates_args=())


@score_operator.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Any, targets: Any, dtype: Any, logit_cap: Any = None
) -> tuple[Tensor, Tensor]:
    x, _, sum_dtype = matmul_operands(hidden, weight, dtype)
    return x.new_empty(len(x), dtype=sum_dtype), x.new_empty(len(x), dtype=torch.long)


def cap(x: Tensor, limit: float | None) -> Tensor:
    """Compute c tanh(x / c), a smooth limit of x to the range from -c to c (Bello et al. 2016)."""
    return x if limit is None else limit * (x / limit).tanh()


def check_targets(targets: Tensor, vocab_size: int) -> None:
    """Raise InputError unless all targets are tokens of the vocabulary or `IGNORE_INDEX`.

    On CUDA, an assertion on the device fails instead, because the check does not wait for the GPU.
    """
    outside = ((targets < 0) | (targets >= vocab_size)) & (targets != IGNORE_INDEX)
    allowed = f"from 0 to {vocab_size - 1}, or {IGNORE_INDEX} for a target that does not count"
    if not targets.is_cpu:
        torch._assert_async(~outside.any(), f"targets must be {allowed}")
    elif type(targets) is Tensor and bool(outside.any()):
        raise InputError(f"must be {allowed}, got {targets[outside][0].item()}", option="targets")


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the data type of products under autocast, None without it, in fp64 and for meta."""
    is_lowered = x.dtype != torch.float64 and not x.is_meta
    enabled = is_lowered and torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if enabled else None


def matmul_operands(
    hidden: Tensor, weight: Tensor, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Convert hidden states and output matrix to the data type of their product under autocast.

    The third result is the data type in which losses and gradients are summed, fp32 or fp64.
    """
    if dtype is not None:
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return hidden, weight, torch.promote_types(hidden.dtype, torch.float32)


def even_slices(x: Tensor, w: Tensor) -> list[slice]:
    """Divide the tokens of x (N, D) into even slices, in order.

    A slice has at most `MAX_SLICE_LOGITS` logits. On other devices than a CPU, it has about
    `DEVICE_FACTOR` times as many, and a multiple of `TOKEN_MULTIPLE` tokens.
    """
    on_cpu = runs_on_cpu(x)
    limit = MAX_SLICE_LOGITS * (1 if on_cpu else DEVICE_FACTOR)
    n_slices = max(1, math.ceil(len(x) * len(w) / limit))
    multiple = 1 if on_cpu or n_slices == 1 else TOKEN_MULTIPLE
    return _ranges(len(x), max(1, math.ceil(len(x) / n_slices / multiple) * multiple))


def runs_on_cpu(x: Tensor) -> bool:
    """Return True if the sizes of slices and tiles are those for a CPU."""
    return x.device.type == "cpu"


def _ranges(length: int, step: int) -> list[slice]:
    """Divide the indices from 0 to `length` - 1 into consecutive ranges of at most `step`."""
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
