"""Products of a few rows with large matrices, which is what decoding on a CPU waits for.

One row times a matrix should take as long as reading the matrix. Within `few_rows` the matrices of
a model too large for a cache are laid out in strips of columns: a row times a strip is a weighted
sum of the strip's rows, which is faster than torch's product. In fp32 some dozens of rows are
faster strip by strip, too.

Shapes: B rows, K in, N out, C strips, W width of a strip.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fourfold.kernels.rows import runs, sums_fast, weighted_sums

WIDTHS = (192, 96, 48)  # the widest that gives each thread a strip
SUMMED = {torch.float32: 4, torch.bfloat16: 3}  # most rows for which sums are fastest
MULTIPLIED = {torch.float32: 64}  # and for which a product of each strip is
LEAST = 2**17  # numbers of a matrix: a smaller one is not worth the overhead
CACHED = 2**24  # bytes of weights that may stay in a cache, from where F.linear is fastest
MOST = 2**31  # bytes of all strips: they are a second copy


class Linear(nn.Linear):
    """`nn.Linear`, whose product is `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) to (..., N)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., K) weight (N, K)^T + bias (N,), (..., N): F.linear, within `few_rows` by strips."""
    strips = None
    if not torch.compiler.is_compiling() and (laid_out := _current.get()) is not None:
        strips = laid_out.strips(weight, x)
    return F.linear(x, weight, bias) if strips is None else strips(x, bias)


class Strips:
    """A matrix laid out for a few rows.

    Args:
        weight: (N, K).
    """

    def __init__(self, weight: Tensor) -> None:
        self.shape, threads = weight.shape, torch.get_num_threads()
        n_out, n_in = weight.shape
        fitting = (width for width in WIDTHS if math.ceil(n_out / width) >= threads)
        self.width = next(fitting, WIDTHS[-1])
        self.strips = weight.new_zeros(math.ceil(n_out / self.width), n_in, self.width)

    def fill(self, weight: Tensor) -> None:
        """Copy the matrix as it is now."""
        n_out, n_in = self.shape
        whole = n_out // self.width
        cut = weight[: whole * self.width].view(whole, self.width, n_in)
        self.strips[:whole] = cut.transpose(1, 2)
        if whole < len(self.strips):
            self.strips[whole, :, : n_out % self.width] = weight[whole * self.width :].T

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(..., K) to (..., N)."""
        rows = x.reshape(-1, self.shape[1])  # (B, K)
        n_rows, n_strips = len(rows), len(self.strips)
        by_strip = rows.expand(n_strips, -1, -1)
        if n_rows <= SUMMED[x.dtype]:
            members = runs(n_strips, self.shape[1], self.shape[1], n_rows)
            y = weighted_sums(self.strips.flatten(0, 1), members, by_strip.flatten())
            y = y.unflatten(0, (n_strips, n_rows))
        else:
            y = torch.bmm(by_strip, self.strips)
        y = y.transpose(0, 1).flatten(1)[:, : self.shape[0]]
        y = y if bias is None else y + bias
        return y.view(*x.shape[:-1], self.shape[0])


class LaidOut:
    """The strips of one `few_rows`: each matrix is copied at its first use in it.

    So they are what the weights are now, however these were changed; only the memory is kept.
    """

    def __init__(self) -> None:
        # With each matrix itself: the number of one that is gone may be that of the next.
        self._ready: dict[int, tuple[Tensor, Strips]] = {}
        self._bytes = 0

    def strips(self, weight: Tensor, x: Tensor) -> Strips | None:
        """Those of a matrix, if they are the fastest for rows x (..., K)."""
        most = MULTIPLIED.get(x.dtype) or SUMMED.get(x.dtype, 0)
        few = 0 < x.numel() <= most * x.shape[-1]
        # What is no parameter is made anew for each use, of a parametrised one.
        lasts = isinstance(weight, nn.Parameter)
        if not few or not lasts or weight.dtype != x.dtype or not weight.is_cpu:
            return None
        _, found = self._ready.get(id(weight), (None, None))
        return found or self._lay_out(weight)

    def _lay_out(self, weight: Tensor) -> Strips | None:
        taken = weight.numel() * weight.element_size()
        if weight.numel() < LEAST or not sums_fast(weight) or self._bytes + taken > MOST:
            return None
        found = _memory.get(weight)
        if found is None or found.shape != weight.shape or found.strips.dtype != weight.dtype:
            found = _memory[weight] = Strips(weight)
        found.fill(weight)
        self._ready[id(weight)] = weight, found
        self._bytes += taken
        return found


_current: ContextVar[LaidOut | None] = ContextVar("laid_out", default=None)
_memory = WeakTensorKeyDictionary()  # of matrices that live: fresh memory costs three times a copy


@contextmanager
def few_rows(weights: Iterable[Tensor]) -> Iterator[None]:
    """Within it, in inference mode, `linear` takes strips where they are faster.

    For a CPU whose torch has the kernel.

    Args:
        weights: All that are read over and over; they do not change in it.
    """
    cached = sum(weight.numel() * weight.element_size() for weight in weights) <= CACHED
    plain = cached or torch.is_autocast_enabled("cpu")
    token = _current.set(None if plain else LaidOut())
    try:
        yield
    finally:
        _current.reset(token)
