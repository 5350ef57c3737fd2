"""CPU kernels of decoding: linear layers for few input vectors, and weighted sums of cached values.

In the context `decode_layout`, weights that are too large for the cache of the processor are
transposed to (K, N) and copied into strips of W adjacent columns. The product of a vector and a
strip is a weighted sum of the rows of the strip. torch's `embedding_bag` computes this sum, because
it reads memory faster (18 to 33 GB/s) than torch's matrix product (7 to 15 GB/s). In fp32, products
of up to 64 vectors are also faster with one matrix product per strip.

Shapes of products: B input vectors, K inputs, N outputs, C strips, W width of a strip. Shapes of
weighted sums: R rows of the table, S sums, M terms of each sum.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fourfold.kernels.int8 import Int8Matrix, int8_linear

STRIP_WIDTHS = (192, 96, 48)  # columns; the first width that gives each thread a strip is used
# Largest number of rows of x for which weighted sums are fastest.
MAX_SUMMED_ROWS = {torch.float32: 4, torch.bfloat16: 3}
# Largest number of rows of x for which one product per strip is faster than one product.
MAX_STRIPED_ROWS = {torch.float32: 64}
MIN_MATRIX_ELEMENTS = 2**17  # smaller matrices do not compensate for the overhead
CACHED_BYTES = 2**24  # of all weights of a model; F.linear reads fewer bytes from the cache
MAX_STRIP_BYTES = 2**31  # memory of all strips, which are a second copy of the weights
HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines  # kernels of `embedding_bag`


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """Compute F.linear(x, weight, bias), from x (..., K), a matrix (N, K) and a bias (N,) or None.

    The matrix may be in int8. In the context `decode_layout`, a copy of it in strips is used if
    this is faster.
    """
    if isinstance(weight, Int8Matrix):
        return int8_linear(x, weight, bias)
    strips = None
    if not torch.compiler.is_compiling() and (packed := packed_weights.get()) is not None:
        strips = packed.strips(weight, x)
    return F.linear(x, weight, bias) if strips is None else strips(x, bias)


class ColumnStrips:
    """Memory for a weight matrix (N, K) in C strips (K, W), each with W of the N outputs.

    `fill` copies the matrix. The columns beyond the N outputs are 0.
    """

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.dtype = weight.shape, weight.dtype
        n_out, n_in = weight.shape
        n_threads = torch.get_num_threads()
        widths = (width for width in STRIP_WIDTHS if math.ceil(n_out / width) >= n_threads)
        self.width = next(widths, STRIP_WIDTHS[-1])
        self.strips = weight.new_zeros(math.ceil(n_out / self.width), n_in, self.width)

    def fill(self, weight: Tensor) -> None:
        """Copy the values of the matrix `weight` (N, K) into the strips, in place."""
        n_out, n_in = self.shape
        n_full = n_out // self.width
        full = weight[: n_full * self.width].view(n_full, self.width, n_in)
        self.strips[:n_full] = full.transpose(1, 2)
        if n_full < len(self.strips):
            self.strips[n_full, :, : n_out % self.width] = weight[n_full * self.width :].T

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x @ weight.T + bias for inputs x (..., K)."""
        rows = x.reshape(-1, self.shape[1])  # (B, K)
        n_rows, n_strips = len(rows), len(self.strips)
        by_strip = rows.expand(n_strips, -1, -1)
        if n_rows <= MAX_SUMMED_ROWS[x.dtype]:
            terms = consecutive_terms(n_strips, self.shape[1], self.shape[1], n_rows)
            y = weighted_sums(self.strips.flatten(0, 1), terms, by_strip.flatten())
            y = y.unflatten(0, (n_strips, n_rows))
        else:
            y = torch.bmm(by_strip, self.strips)
        y = y.transpose(0, 1).flatten(1)[:, : self.shape[0]]
        y = y if bias is None else y + bias
        return y.view(*x.shape[:-1], self.shape[0])


class PackedWeights:
    """Weight matrices that are copied into strips during one context `decode_layout`.

    Each context copies a matrix again, because its values may have changed, at its second use,
    since a copy takes longer than one product. The memory of the strips is kept until the matrix is
    deleted or another model needs it, because allocating takes as long as copying.
    """

    def __init__(self) -> None:
        # Each entry holds its matrix, because a deleted tensor's id could be reused.
        self._ready: dict[int, tuple[Tensor, ColumnStrips]] = {}
        self._used: set[int] = set()  # ids of matrices that were used once
        self._bytes = 0

    def strips(self, weight: Tensor, x: Tensor) -> ColumnStrips | None:
        """Return the strips of a matrix, or None if F.linear is faster with x or must be used."""
        max_rows = MAX_STRIPED_ROWS.get(x.dtype) or MAX_SUMMED_ROWS.get(x.dtype, 0)
        few_rows = 0 < x.numel() <= max_rows * x.shape[-1]
        # The weight of a parametrized layer is not a parameter, and is computed for each use.
        lasts = isinstance(weight, nn.Parameter)
        if not few_rows or not lasts or weight.dtype != x.dtype or not weight.is_cpu:
            return None
        if id(weight) not in self._used:
            self._used.add(id(weight))
            return None
        _, strips = self._ready.get(id(weight), (None, None))
        return strips or self._pack(weight)

    def _pack(self, weight: Tensor) -> ColumnStrips | None:
        """Copy a matrix into strips; None if it is small, unsupported or exceeds the memory."""
        n_bytes = weight.numel() * weight.element_size()
        fits = self._bytes + n_bytes <= MAX_STRIP_BYTES
        if weight.numel() < MIN_MATRIX_ELEMENTS or not supports_weighted_sums(weight) or not fits:
            return None
        with _lock:
            strips = _memory.get(weight)
            if strips is None or (strips.shape, strips.dtype) != (weight.shape, weight.dtype):
                self._release(n_bytes)
                strips = _memory[weight] = ColumnStrips(weight)
        strips.fill(weight)
        self._ready[id(weight)] = weight, strips
        self._bytes += n_bytes
        return strips

    def _release(self, n_bytes: int) -> None:
        """Delete strips that this context does not use until `n_bytes` more bytes are allowed."""
        n_kept = sum(strips.strips.nbytes for strips in _memory.values())
        for weight, strips in list(_memory.items()):
            if n_kept + n_bytes > MAX_STRIP_BYTES and id(weight) not in self._ready:
                n_kept -= strips.strips.nbytes
                _memory.pop(weight, None)


packed_weights: ContextVar[PackedWeights | None] = ContextVar("packed_weights", default=None)
_memory = WeakTensorKeyDictionary()  # strips by their matrix
_lock = Lock()


@contextmanager
def decode_layout(weights: Iterable[Tensor]) -> Iterator[None]:
    """Let linear layers use copies of large matrices in strips, for inference on a CPU.

    `weights` are all weights that a decoding step reads. They must not change in the context. If
    they fit in the cache of the processor, and on other devices and under autocast, the layers call
    F.linear.
    """
    cached = sum(weight.numel() * weight.element_size() for weight in weights) <= CACHED_BYTES
    unpacked = cached or torch.is_autocast_enabled("cpu")
    token = packed_weights.set(None if unpacked else PackedWeights())
    try:
        yield
    finally:
        packed_weights.reset(token)


def supports_weighted_sums(table: Tensor) -> bool:
    """Return True if torch has a fast kernel for `weighted_sums` of rows of a table (R, W)."""
    return table.device.type == "cpu" and table.dtype in MAX_SUMMED_ROWS and HAS_FBGEMM


def weighted_sums(table: Tensor, terms: tuple[Tensor, Tensor], factors: Tensor) -> Tensor:
    """Compute S weighted sums (S, W), each of M rows of a table (R, W).

    `terms` are the rows (S * M,) of all sums, one sum after the other, and the index (S,) of the
    first term of each sum. `factors` (S * M,) are the weights.
    """
    return torch.embedding_bag(table, *terms, mode=0, per_sample_weights=factors)[0]


@lru_cache(maxsize=16)  # all layers of a decoding step use the same few results
def consecutive_terms(
    n_starts: int, n_terms: int, step: int, copies: int = 1
) -> tuple[Tensor, Tensor]:
    """Build the argument `terms` of `weighted_sums` for sums over M consecutive rows of the table.

    The sums begin at the rows 0, `step`, 2 `step` and so on, `copies` sums at each of the
    `n_starts` rows. Each has M = `n_terms` terms.
    """
    starts = torch.arange(n_starts, dtype=torch.int32) * step
    rows = starts[:, None, None] + torch.arange(n_terms, dtype=torch.int32)
    rows = rows.expand(-1, copies, -1).reshape(-1)
    return rows, torch.arange(0, len(rows), n_terms, dtype=torch.int32)
