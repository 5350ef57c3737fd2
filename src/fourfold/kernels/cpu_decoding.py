"""CPU kernels of decoding: linear layers for few input vectors, and weighted sums of cached values.

In the context `decode_layout`, weights that are too large for the cache of the processor are
transposed to (K, N) and copied into strips of W columns. The product of a vector and a strip is a
weighted sum of the rows of the strip. torch's `embedding_bag` computes this sum, because it reads
memory faster (18 to 33 GB/s) than torch's matrix product (7 to 15 GB/s). In fp32, products of up to
64 vectors are also faster with one matrix product per strip.

Shapes of products: B input vectors, K inputs, N outputs, C strips, W width of a strip. Shapes of
weighted sums: R rows of the table, S sums, M terms of each sum.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
MAX_TERMS, MAX_TERM_BYTES = 64, 2**25  # results of `consecutive_terms` that are kept
HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines  # kernels of `embedding_bag`


class Linear(nn.Linear):
    """`nn.Linear` that calls the function `linear`, which makes decoding on a CPU faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., K), and return the result (..., N)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """Compute F.linear(x, weight, bias), which is x @ weight.T + bias.

    In the context `decode_layout`, the product is computed from a copy of the matrix in strips of
    columns if this is faster.

    Args:
        x: Inputs (..., K).
        weight: Matrix (N, K), which may be in int8.
        bias: (N,) or None.

    Returns:
        Outputs (..., N).
    """
    if isinstance(weight, Int8Matrix):
        return int8_linear(x, weight, bias)
    strips = None
    if not torch.compiler.is_compiling() and (packed := _current.get()) is not None:
        strips = packed.strips(weight, x)
    return F.linear(x, weight, bias) if strips is None else strips(x, bias)


class ColumnStrips:
    """Copy of a weight matrix in C strips (K, W), each with W of the N outputs.

    Products of the strips with few vectors are faster than F.linear. The constructor only allocates
    the strips. The method `fill` copies the matrix.

    Args:
        weight: Matrix (N, K) that gives the strips their size, data type and device.

    Attributes:
        strips: Tensor (C, K, W). The columns beyond the N outputs are 0.
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
        """Compute x @ weight.T + bias.

        Args:
            x: Inputs (..., K).
            bias: (N,) or None.

        Returns:
            Outputs (..., N).
        """
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

    A strip is a copy of adjacent columns of the transposed matrix, in the memory order that is
    fastest for decoding (see `ColumnStrips`). A matrix is copied at its second use in the context,
    since a copy takes longer than one product. Each context has its own instance of this class, and
    copies the matrix again, because the values may have changed. The memory of the strips is
    allocated once, because allocating takes as long as copying. It is kept until the matrix is
    deleted, or until the strips of another model need it.
    """

    def __init__(self) -> None:
        # Each entry holds its matrix, because a deleted tensor's id could be reused.
        self._ready: dict[int, tuple[Tensor, ColumnStrips]] = {}
        self._used: set[int] = set()  # ids of matrices that were used once
        self._bytes = 0

    def strips(self, weight: Tensor, x: Tensor) -> ColumnStrips | None:
        """Return the strips of a matrix, which is copied at its second use in the context.

        Args:
            weight: Matrix (N, K).
            x: Inputs (..., K) of the product.

        Returns:
            The strips, or None if F.linear is faster for this product or must be used.
        """
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
        """Copy a matrix (N, K) into strips of adjacent columns, and return the strips.

        The result is None if the matrix has fewer than `MIN_MATRIX_ELEMENTS` elements, or has an
        unsupported data type. It is also None if the strips of all matrices in this context would
        need more than `MAX_STRIP_BYTES` bytes.
        """
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


_current: ContextVar[PackedWeights | None] = ContextVar("packed_weights", default=None)
_memory = WeakTensorKeyDictionary()  # strips by their matrix
_terms: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # the last used ones are at the end
_lock = Lock()


@contextmanager
def decode_layout(weights: Iterable[Tensor]) -> Iterator[None]:
    """Context manager in which the function `linear` uses copies of large matrices in strips.

    The context is for inference on a CPU. On other devices and under autocast, `linear` calls
    F.linear.

    Args:
        weights: All weights that each decoding step reads. If these weights together fit in the
            cache of the processor, `linear` calls F.linear. The weights must not change in the
            context.
    """
    cached = sum(weight.numel() * weight.element_size() for weight in weights) <= CACHED_BYTES
    unpacked = cached or torch.is_autocast_enabled("cpu")
    token = _current.set(None if unpacked else PackedWeights())
    try:
        yield
    finally:
        _current.reset(token)


def supports_weighted_sums(table: Tensor) -> bool:
    """Return True if torch has a fast kernel for `weighted_sums` of rows of a table (R, W)."""
    return table.device.type == "cpu" and table.dtype in MAX_SUMMED_ROWS and HAS_FBGEMM


def weighted_sums(table: Tensor, terms: tuple[Tensor, Tensor], factors: Tensor) -> Tensor:
    """Compute S weighted sums, each of M rows of a table.

    Args:
        table: Matrix (R, W).
        terms: A tuple of row indices (S * M,) and offsets (S,). The row indices name the terms of
            all sums, one sum after the other. The offset of a sum is the index of its first term
            among the row indices.
        factors: Factor on each term, (S * M,).

    Returns:
        Sums (S, W).
    """
    return torch.embedding_bag(table, *terms, mode=0, per_sample_weights=factors)[0]


def consecutive_terms(
    n_starts: int, n_terms: int, step: int, copies: int = 1
) -> tuple[Tensor, Tensor]:
    """Build the argument `terms` of `weighted_sums` for sums over M consecutive rows of the table.

    Args:
        n_starts: Number of different rows at which a sum begins.
        n_terms: Number of terms M of a sum.
        step: Distance between two successive rows at which a sum begins.
        copies: Number of sums that begin at the same row. The number S of sums is n_starts *
            copies.

    Returns:
        Row indices (S * M,) and offsets (S,), both int32.
    """
    key = n_starts, n_terms, step, copies
    with _lock:
        if found := _terms.pop(key, None):
            _terms[key] = found
            return found
    starts = torch.arange(n_starts, dtype=torch.int32) * step
    rows = starts[:, None, None] + torch.arange(n_terms, dtype=torch.int32)
    rows = rows.expand(-1, copies, -1).reshape(-1)
    found = rows, torch.arange(0, len(rows), n_terms, dtype=torch.int32)
    with _lock:
        _terms[key] = found
        n_bytes = sum(x.nbytes for x, _ in _terms.values())
        while len(_terms) > 1 and (len(_terms) > MAX_TERMS or n_bytes > MAX_TERM_BYTES):
            n_bytes -= _terms.pop(next(iter(_terms)))[0].nbytes
    return found
