"""Cross-entropy of a large vocabulary and its gradients, computed from slices of the logits.

A slice is a range of tokens, and a tile is a range of vocabulary entries within a slice.
Shapes: N tokens, n tokens of a slice, D model width, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE_INDEX = -100
# 128 MiB in bf16. Fewer logits would let the addition of each slice's share to the (V, D) gradient
# take as long as the matrix products.
MAX_SLICE_LOGITS = 2**26
# On a CPU, a tile fits in the cache between its matrix product and its softmax.
TILE_LOGITS_CPU = 2**22
TILE_LOGITS_CUDA = 2**26


class Smoothing(NamedTuple):
    """Target distribution after label smoothing.

    Attributes:
        extra: Probability of the target minus that of any other token.
        elsewhere: Probability of each token other than the target.
        pad_id: Padding token, whose probability is 0; None if there is no such token.
    """

    extra: float
    elsewhere: float
    pad_id: int | None


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy, whose forward pass also computes the gradients, slice by slice.

    `apply` takes, in this order, a `Smoothing`, True if gradients are needed, the hidden states
    (N, D), the output matrix (V, D), its bias (V,) or None, the target tokens (N,), and a weight
    for each target (N,) or None. The result is the sum of the weighted losses, a scalar, in which
    targets of `IGNORE_INDEX` do not count.
    """

    @staticmethod
    def forward(ctx: Any, smoothing: Smoothing, needs_grad: bool, *inputs: Any) -> Tensor:
        needs_grad = needs_grad and any(ctx.needs_input_grad)
        total, ctx.gradients = _forward_slices(smoothing, needs_grad, *inputs)
        device = total.device.type
        ctx.autocast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.smoothing = smoothing
        ctx.save_for_backward(*inputs)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward pass: the first scaled the gradients in place
            with torch.autocast(grad.device.type, *ctx.autocast):
                _, gradients = _forward_slices(ctx.smoothing, True, *inputs)
        # Scaled in fp32 or better, because bf16 cannot represent 1 / (number of tokens).
        scaled = [
            None if total is None else total.mul_(grad).to(given.dtype)
            for total, given in zip(gradients.sums, inputs[:3], strict=True)
        ]
        return None, None, *scaled, None, None


def _forward_slices(
    smoothing: Smoothing,
    needs_grad: bool,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, "_Gradients | None"]:
    x, w, sum_dtype = matmul_operands(hidden, weight)
    row_weights = (targets != IGNORE_INDEX).to(sum_dtype)
    if weights is not None:
        row_weights *= weights
    total = torch.zeros((), dtype=sum_dtype, device=x.device)
    gradients = _Gradients(x, w, bias, sum_dtype, smoothing) if needs_grad else None
    workspace = _Workspace(x, w, sum_dtype, keep_tiles=needs_grad)
    with torch.autocast(x.device.type, enabled=False):
        for rows in even_slices(x, w):
            part = _Slice(x[rows], w, bias, targets[rows], row_weights[rows], smoothing, workspace)
            total += part.loss
            if gradients is not None:
                gradients.add(rows, part)
    return total, gradients


class _Workspace:
    """Buffers shared by all slices, because allocating memory costs more than a pass over it.

    Args:
        x: Hidden states (N, D).
        w: Output matrix (V, D).
        sum_dtype: Dtype of sums, fp32 or fp64.
        keep_tiles: Give each tile of a slice its own memory, as the gradients require; otherwise
            all tiles share the memory of one.
    """

    def __init__(self, x: Tensor, w: Tensor, sum_dtype: torch.dtype, *, keep_tiles: bool) -> None:
        n_rows = max((len(x[rows]) for rows in even_slices(x, w)), default=0)
        tile_logits = TILE_LOGITS_CPU if x.device.type == "cpu" else TILE_LOGITS_CUDA
        self.tile_width = min(len(w), max(1, tile_logits // max(1, n_rows)))
        self.keep_tiles = keep_tiles
        self._tiles = x.new_empty(n_rows * (len(w) if keep_tiles else self.tile_width))
        self._scratch = None
        if x.dtype != sum_dtype:
            self._scratch = x.new_empty(n_rows * self.tile_width, dtype=sum_dtype)

    def tile(self, n: int, columns: slice) -> Tensor:
        """Return the memory of the tile of n tokens and of the vocabulary range `columns`."""
        start = n * columns.start if self.keep_tiles else 0
        return self._tiles[start : start + n * (columns.stop - columns.start)].view(n, -1)

    def upcast(self, tile: Tensor) -> Tensor:
        """Return a copy of the tile in the dtype of sums, or the tile if it has that dtype."""
        if self._scratch is None:
            return tile
        return self._scratch[: tile.numel()].view_as(tile).copy_(tile)


class _Slice:
    """Loss of the n tokens of a slice, with their softmax in tiles of the vocabulary.

    With z the logits of a tile and m the maximum of z for each token, a tile stores exp(z - m). The
    factor of the tile, exp(m - logsumexp of all logits) times the weight of the token, turns
    exp(z - m) into the weighted softmax. The gradients apply the factors outside of the matrix
    products, which saves a second pass over the logits.

    With the target distribution q = elsewhere + extra on the target, elsewhere on other tokens and
    0 on `pad_id`, sum(q) = 1: loss = logsumexp(z) - sum(q z) and d loss / d z = softmax(z) - q.
    """

    def __init__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        row_weights: Tensor,
        smoothing: Smoothing,
        workspace: _Workspace,
    ) -> None:
        self.x = x
        self.row_weights = row_weights
        self.targets = targets
        extra, elsewhere, pad_id = smoothing
        width = workspace.tile_width
        self.columns = [
            slice(start, min(start + width, len(w))) for start in range(0, len(w), width)
        ]
        self.tiles: list[Tensor] = []
        maxima = []
        sums = []
        expected_logit = torch.zeros_like(row_weights)  # sum(q z)
        for columns in self.columns:
            tile = workspace.tile(len(x), columns)
            torch.mm(x, w[columns].T, out=tile)
            z = workspace.upcast(tile)
            if bias is not None:
                z += bias[columns]
            index, inside = self._target_columns(columns)
            expected_logit += extra * z.gather(1, index).squeeze(1) * inside
            if elsewhere:
                expected_logit += elsewhere * z.sum(-1)
                if pad_id is not None and columns.start <= pad_id < columns.stop:
                    expected_logit -= elsewhere * z[:, pad_id - columns.start]
            maximum = z.amax(-1, keepdim=True)
            sums.append(z.sub_(maximum).exp_().sum(-1))
            maxima.append(maximum.squeeze(1))
            if z is not tile and workspace.keep_tiles:
                tile.copy_(z)
            self.tiles.append(tile)
        stacked = torch.stack(maxima)  # (tiles, n)
        logsumexp = (stacked + torch.stack(sums).log()).logsumexp(0)
        self.loss = ((logsumexp - expected_logit) * row_weights).sum()
        self.factors = (stacked - logsumexp).exp() * row_weights

    def _target_columns(self, columns: slice) -> tuple[Tensor, Tensor]:
        """Locate the targets in a tile, which is the range `columns` of the vocabulary.

        Returns:
            Column (n, 1) of each target in the tile, and a bool (n,), True = the target is in the
            tile; the column of any other target is arbitrary.
        """
        index = self.targets - columns.start
        inside = (index >= 0) & (index < columns.stop - columns.start)
        return index.clamp(0, columns.stop - columns.start - 1)[:, None], inside

    def subtract_targets(self, extra: float) -> Tensor:
        """Subtract `extra` from the softmax of each likely target, in the tiles in place.

        A target is likely if a token in its tile has a probability above 0.25. The gradient of a
        confident prediction is a small difference of softmax and target. The subtraction here
        precedes the rounding of that difference to low precision.

        Returns:
            For each token the amount (n,) that is still to be subtracted from the softmax of its
            target: 0 for a likely target, else `extra` times the weight of the token.
        """
        remaining = extra * self.row_weights
        for columns, tile, factor in zip(self.columns, self.tiles, self.factors, strict=True):
            index, inside = self._target_columns(columns)
            likely = inside & (factor > 0.25 * self.row_weights)
            subtrahend = torch.where(likely, remaining / factor, 0.0)
            target = torch.arange(len(index), device=index.device), index.squeeze(1)
            tile[target] = (tile[target] - subtrahend).to(tile.dtype)
            remaining = torch.where(likely, 0.0, remaining)
        return remaining


class _Gradients:
    """Gradients of the summed loss, accumulated slice by slice.

    Args:
        x: Hidden states (N, D).
        w: Output matrix (V, D).
        bias: (V,) or None.
        sum_dtype: Dtype of the gradients.
        smoothing: Target distribution.
    """

    def __init__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        sum_dtype: torch.dtype,
        smoothing: Smoothing,
    ) -> None:
        self.w = w
        self.smoothing = smoothing
        self.hidden = torch.zeros_like(x, dtype=sum_dtype)
        self.weight = torch.zeros_like(w, dtype=sum_dtype)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=sum_dtype)
        self.sums = self.hidden, self.weight, self.bias

    def add(self, rows: slice, part: _Slice) -> None:
        """Add the gradients of the slice `part`, which consists of the token range `rows`."""
        extra, elsewhere, pad_id = self.smoothing
        remaining = part.subtract_targets(extra)
        x = part.x.to(self.hidden.dtype)
        hidden = self.hidden[rows]
        for columns, tile, factor in zip(part.columns, part.tiles, part.factors, strict=True):
            scaled = (x * factor[:, None]).to(tile.dtype)
            hidden += torch.mm(tile, self.w[columns]) * factor[:, None]
            self.weight[columns] += torch.mm(tile.T, scaled)
            if self.bias is not None:
                self.bias[columns] += torch.mm(tile.T, factor[:, None].to(tile.dtype)).squeeze(1)
        self._add_for_tokens(hidden, x, -remaining, part.targets.clamp(min=0))
        if elsewhere:
            uniform = -elsewhere * part.row_weights
            hidden += torch.outer(uniform, self.w.sum(0, dtype=x.dtype))
            self.weight += uniform @ x
            if self.bias is not None:
                self.bias += uniform.sum()
            if pad_id is not None:
                self._add_for_tokens(hidden, x, -uniform, torch.full_like(part.targets, pad_id))

    def _add_for_tokens(self, hidden: Tensor, x: Tensor, grad: Tensor, tokens: Tensor) -> None:
        """Add the gradients that come from one logit of each of the n tokens of a slice.

        Args:
            hidden: Gradient (n, D) of the hidden states, changed in place.
            x: Hidden states (n, D).
            grad: Gradient (n,) of the loss with respect to that logit.
            tokens: Vocabulary index (n,) of that logit.
        """
        hidden += grad[:, None] * self.w[tokens]
        self.weight.index_add_(0, tokens, grad[:, None] * x)
        if self.bias is not None:
            self.bias.index_add_(0, tokens, grad)


def matmul_operands(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return both tensors as autocast passes them to a matrix product, and the dtype of sums."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return hidden, weight, torch.promote_types(hidden.dtype, torch.float32)


def even_slices(x: Tensor, w: Tensor) -> list[slice]:
    """Divide the tokens of x into even slices with at most `MAX_SLICE_LOGITS` logits each.

    Args:
        x: Hidden states (N, D).
        w: Output matrix (V, D); a slice of n tokens has n * V logits.
    """
    n_slices = max(1, math.ceil(len(x) * len(w) / MAX_SLICE_LOGITS))
    step = max(1, math.ceil(len(x) / n_slices))
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]
