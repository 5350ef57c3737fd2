"""Cross-entropy of a large vocabulary, and its gradients, computed from slices of the logits.

`fourfold.kernels.loss_operators` makes this computation differentiable. A slice is a range of
tokens. A tile is a range of vocabulary entries within a slice.
Shapes: N tokens, n tokens of a slice, D model width, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

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


class LossTerms(NamedTuple):
    """Target distribution of a token after label smoothing, and factor of the z-loss.

    Attributes:
        extra: Probability of the target minus that of any other token.
        elsewhere: Probability of each token other than the target and `pad_id`.
        pad_id: Padding token, whose probability is 0; None if there is no such token.
        z_loss: Factor on the square of the logsumexp of the logits, which is added to the loss.
    """

    extra: float
    elsewhere: float
    pad_id: int | None
    z_loss: float


class Pass:
    """Computation of the cross-entropy and, if needed, its gradients, by the constructor.

    The slices are computed one after another. All slices use the same buffers, because allocating a
    buffer takes longer than one pass over its elements.

    Args:
        terms: Target distribution and factor of the z-loss.
        needs_grad: Compute the gradients. Each tile of a slice then has memory of its own.
            Otherwise all tiles share the memory of one tile.
        needs_weight: Compute the gradient of the output matrix, too.
        needs_losses: Store the loss of each target in `losses`.
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        bias: (V,) or None.
        targets: Target tokens (N,) int64. Targets equal to `IGNORE_INDEX` (-100) are ignored.
        weights: Factors (N,) on the losses. None means 1.
        dtype: Data type of the matrix products under autocast. None without autocast.

    Attributes:
        total: Sum of the weighted losses, a scalar.
        losses: Loss (N,) of each target without its factor; empty if `needs_losses` is False.
        gradients: Gradients of `total`; None if `needs_grad` is False.
    """

    def __init__(
        self,
        terms: LossTerms,
        needs_grad: bool,
        needs_weight: bool,
        needs_losses: bool,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        dtype: torch.dtype | None,
    ) -> None:
        x, w, sum_dtype = matmul_operands(hidden, weight, dtype)
        slices = even_slices(x, w)
        n_rows = max((rows.stop - rows.start for rows in slices), default=0)
        self.on_cpu = runs_on_cpu(x)
        self.vocab_size = self.tile_width = len(w)
        if self.on_cpu:
            self.tile_width = min(len(w), max(1, TILE_LOGITS_CPU // max(1, n_rows)))
        elif padding := -len(w) % VOCABULARY_MULTIPLE:
            w = F.pad(w, (0, 0, 0, padding))
            bias = None if bias is None else F.pad(bias, (0, padding))
            self.tile_width = len(w)
        self.x = x
        self.w = w
        self.bias = bias
        self.terms = terms
        self.targets = targets
        self.row_weights = (targets != IGNORE_INDEX).to(sum_dtype)
        if weights is not None:
            self.row_weights *= weights
        self._tiles = x.new_empty(n_rows * (len(w) if needs_grad else self.tile_width))
        n_scratch = n_rows * self.tile_width if x.dtype != sum_dtype else 0
        self._scratch = x.new_empty(n_scratch, dtype=sum_dtype)
        self.total = torch.zeros((), dtype=sum_dtype, device=x.device)
        self.losses = x.new_empty(len(x) if needs_losses else 0, dtype=sum_dtype)
        self.gradients = _Gradients(self, needs_weight) if needs_grad else None
        with torch.autocast(x.device.type, enabled=False):
            for rows in slices:
                part = _Slice(self, rows)
                self.total += part.loss
                if needs_losses:
                    self.losses[rows] = part.losses * (part.targets != IGNORE_INDEX)
                if self.gradients is not None:
                    self.gradients.add(part)
        if self.gradients is not None:
            self.gradients.remove_padding(self.vocab_size)

    def tile(self, n: int, columns: slice) -> Tensor:
        """Return the memory of a tile, a view (n, number of columns) of a buffer.

        Args:
            n: Number of tokens of the slice.
            columns: Vocabulary range of the tile.
        """
        start = n * columns.start if self.gradients else 0
        return self._tiles[start : start + n * (columns.stop - columns.start)].view(n, -1)

    def upcast(self, tile: Tensor) -> Tensor:
        """Convert a tile to the data type of `total`, which is fp32 or fp64.

        The result is a buffer that the next call overwrites, or the tile itself if it has that data
        type.
        """
        if tile.dtype == self.total.dtype:
            return tile
        return self._scratch[: tile.numel()].view_as(tile).copy_(tile)


class _Slice:
    """Loss of the n tokens of a slice, and their softmax in the form of tiles and factors.

    Let z be the logits of a tile and m their maximum for each token; on other devices than a CPU,
    m is their logsumexp. The tile stores exp(z - m).
    Its factor is exp(m - logsumexp of all logits) times the weight of the token and, with a z-loss,
    1 + 2 z_loss logsumexp(z). The product of tile and factor is the softmax in the gradient. The
    gradients apply the factors outside of the matrix products, which saves a second pass over the
    logits.

    The target distribution q of a token sums to 1. The probability of the target is `elsewhere` +
    `extra`, that of `pad_id` is 0, and that of any other token is `elsewhere`. The loss is
    logsumexp(z) - sum(q z) + z_loss logsumexp(z)^2, and its gradient with respect to z is
    (1 + 2 z_loss logsumexp(z)) softmax(z) - q.

    Args:
        run: Computation that the slice belongs to, with the inputs and buffers.
        rows: Range of the tokens.
    """

    def __init__(self, run: Pass, rows: slice) -> None:
        self.rows = rows
        self.x = run.x[rows]
        self.targets = run.targets[rows]
        self.row_weights = run.row_weights[rows]
        extra, elsewhere, pad_id, z_loss = run.terms
        self.columns = _ranges(len(run.w), run.tile_width)
        self.tiles: list[Tensor] = []
        self.target_entries: list[Tensor] = []  # (n,) entries of the targets before rounding
        shifts = []  # m
        sums = []
        expected_logit = torch.zeros_like(self.row_weights)  # sum(q z)
        for columns in self.columns:
            tile = run.tile(len(self.x), columns)
            torch.mm(self.x, run.w[columns].T, out=tile)
            z = run.upcast(tile)
            if run.bias is not None:
                z += run.bias[columns]
            index, inside = self._target_columns(columns)
            expected_logit += extra * z.gather(1, index).squeeze(1) * inside
            if elsewhere:
                expected_logit += elsewhere * z.sum(-1)
                if pad_id is not None and columns.start <= pad_id < columns.stop:
                    expected_logit -= elsewhere * z[:, pad_id - columns.start]
            if run.on_cpu:
                shift = z.amax(-1, keepdim=True)
                sums.append(z.sub_(shift).exp_().sum(-1))
                self.target_entries.append(z.gather(1, index).squeeze(1))
                if z is not tile and run.gradients:
                    tile.copy_(z)
            else:  # fewer passes, since no cache holds the tile
                z[:, run.vocab_size :] = float("-inf")
                log_p = z.log_softmax(-1)
                shift = z[:, :1] - log_p[:, :1]
                sums.append(torch.ones_like(expected_logit))
                self.target_entries.append(log_p.gather(1, index).squeeze(1).exp())
                if run.gradients:
                    torch.exp(log_p, out=tile)
            shifts.append(shift.squeeze(1))
            self.tiles.append(tile)
        stacked = torch.stack(shifts)  # (tiles, n)
        logsumexp = (stacked + torch.stack(sums).log()).logsumexp(0)
        self.losses = logsumexp - expected_logit
        self.factors = (stacked - logsumexp).exp() * self.row_weights
        if z_loss:
            self.losses += z_loss * logsumexp.square()
            self.factors *= 1.0 + 2.0 * z_loss * logsumexp
        self.loss = (self.losses * self.row_weights).sum()

    def _target_columns(self, columns: slice) -> tuple[Tensor, Tensor]:
        """Find the column of each target in a tile.

        Args:
            columns: Range of vocabulary indices of the tile.

        Returns:
            A tuple of the columns (n, 1) of the n targets, counted from the start of the tile, and
            a bool (n,), True = the target is in the tile. The column of a target outside of the
            tile is arbitrary.
        """
        index = self.targets - columns.start
        inside = (index >= 0) & (index < columns.stop - columns.start)
        return index.clamp(0, columns.stop - columns.start - 1)[:, None], inside

    def subtract_targets(self, extra: float) -> Tensor:
        """Subtract the target probability from the softmax, for confident predictions only.

        The subtracted value is `extra` times the weight of the token. The entry of the target in
        its tile is changed in place. A prediction is confident if the largest probability in that
        tile exceeds 0.25. The gradient of a confident prediction is a small difference of softmax
        and target. The difference must therefore be computed before the result is rounded to low
        precision.

        Args:
            extra: Probability of the target minus that of any other token.

        Returns:
            Amount (n,) that the caller still has to subtract from the softmax of each target: 0 for
            a confident prediction, otherwise `extra` times the weight of the token.
        """
        remaining = extra * self.row_weights
        parts = zip(self.columns, self.tiles, self.target_entries, self.factors, strict=True)
        for columns, tile, entry, factor in parts:
            index, inside = self._target_columns(columns)
            likely = inside & (factor > 0.25 * self.row_weights)
            subtrahend = torch.where(likely, remaining / factor, 0.0)
            target = torch.arange(len(index), device=index.device), index.squeeze(1)
            tile[target] = (entry - subtrahend).to(tile.dtype)
            remaining = torch.where(likely, 0.0, remaining)
        return remaining


class _Gradients:
    """Gradients of the sum of the losses. Each slice adds its part to them.

    Args:
        run: Computation that the gradients belong to.
        needs_weight: Compute the gradient of the output matrix.

    Attributes:
        hidden: Gradient (N, D) of the hidden states, in fp32 or fp64.
        weight: Gradient (V, D) of the output matrix, in fp32 or fp64; None if it is not needed.
        bias: Gradient (V,) of the bias, in fp32 or fp64; None without a bias.
    """

    def __init__(self, run: Pass, needs_weight: bool) -> None:
        self.w = run.w
        self.terms = run.terms
        dtype = run.total.dtype
        self.hidden = torch.zeros_like(run.x, dtype=dtype)
        self.weight = torch.zeros_like(run.w, dtype=dtype) if needs_weight else None
        self.bias = None if run.bias is None else torch.zeros_like(run.bias, dtype=dtype)

    def add(self, part: _Slice) -> None:
        """Add the gradients of the loss of a slice to the attributes, in place.

        Args:
            part: The slice. Its tiles are changed in place.
        """
        extra, elsewhere, pad_id, _ = self.terms
        remaining = part.subtract_targets(extra)
        x = part.x.to(self.hidden.dtype)
        hidden = self.hidden[part.rows]
        for columns, tile, factor in zip(part.columns, part.tiles, part.factors, strict=True):
            hidden += torch.mm(tile, self.w[columns]) * factor[:, None]
            if self.weight is not None:
                self.weight[columns] += torch.mm(tile.T, (x * factor[:, None]).to(tile.dtype))
            if self.bias is not None:
                self.bias[columns] += torch.mm(tile.T, factor[:, None].to(tile.dtype)).squeeze(1)
        self._add_for_tokens(hidden, x, -remaining, part.targets.clamp(min=0))
        if elsewhere:
            uniform = -elsewhere * part.row_weights
            hidden += torch.outer(uniform, self.w.sum(0, dtype=x.dtype))
            if self.weight is not None:
                self.weight += uniform @ x
            if self.bias is not None:
                self.bias += uniform.sum()
            if pad_id is not None:
                self._add_for_tokens(hidden, x, -uniform, torch.full_like(part.targets, pad_id))

    def remove_padding(self, vocab_size: int) -> None:
        """Remove the gradients of the padding of the vocabulary."""
        self.weight = None if self.weight is None else self.weight[:vocab_size]
        self.bias = None if self.bias is None else self.bias[:vocab_size]

    def _add_for_tokens(self, hidden: Tensor, x: Tensor, grad: Tensor, tokens: Tensor) -> None:
        """Add the gradients that pass through one logit per token, such as the target's logit.

        The method changes `hidden`, and the attributes `weight` and `bias`, in place.

        Args:
            hidden: Gradient (n, D) of the hidden states, changed in place.
            x: Hidden states (n, D).
            grad: Gradient (n,) of the loss with respect to the logits.
            tokens: Vocabulary index (n,) of each logit.
        """
        hidden += grad[:, None] * self.w[tokens]
        if self.weight is not None:
            self.weight.index_add_(0, tokens, grad[:, None] * x)
        if self.bias is not None:
            self.bias.index_add_(0, tokens, grad)


def matmul_operands(
    hidden: Tensor, weight: Tensor, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Convert hidden states and output matrix to the data type of their product.

    Args:
        hidden: Hidden states (N, D).
        weight: Output matrix (V, D).
        dtype: Data type of the product under autocast. None keeps the data types.

    Returns:
        A tuple of hidden states, output matrix, and the data type in which losses and gradients are
        summed, which is fp32 or fp64.
    """
    if dtype is not None:
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return hidden, weight, torch.promote_types(hidden.dtype, torch.float32)


def even_slices(x: Tensor, w: Tensor) -> list[slice]:
    """Divide the tokens of x into even slices.

    A slice has at most `MAX_SLICE_LOGITS` logits. On other devices than a CPU, it has about
    `DEVICE_FACTOR` times as many, and a multiple of `TOKEN_MULTIPLE` tokens.

    Args:
        x: Hidden states (N, D).
        w: Output matrix (V, D). A slice of n tokens has n * V logits.

    Returns:
        List of index ranges of tokens, in order.
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
