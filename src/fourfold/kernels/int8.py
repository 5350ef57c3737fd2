"""Products with int8 matrices on a CPU: one scale for each row of weights and each input vector.

Input vectors are quantized when the product is computed (dynamic quantization). The product is
exact in int32, so the result for a vector does not depend on the other vectors of the batch.
Shapes: K inputs, N outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Int8Matrix(NamedTuple):
    """Matrix in int8.

    Attributes:
        values: (N, K) int8.
        scales: Factor on each row, (N, 1).
    """

    values: Tensor
    scales: Tensor


def quantize_rows(x: Tensor) -> Int8Matrix:
    """Round each row of x (N, K) to 255 equidistant values; the largest magnitude becomes 127."""
    scales = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return Int8Matrix((x / scales).round().to(torch.int8), scales)


def int8_linear(x: Tensor, weight: Int8Matrix, bias: Tensor | None) -> Tensor:
    """Compute x @ weight.T + bias for x (..., K); returns (..., N) in the data type of x."""
    rows = quantize_rows(x.reshape(-1, x.shape[-1]).float())
    y = torch._int_mm(rows.values, weight.values.T).float()  # (B, N)
    y.mul_(rows.scales).mul_(weight.scales.T)
    if bias is not None:
        y.add_(bias)
    return y.to(x.dtype).view(*x.shape[:-1], len(weight.values))
