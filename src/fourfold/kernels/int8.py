"""Matrix products in int8 on a CPU, with one scale for each row of weights and each input vector.

Input vectors are quantized when the product is computed (dynamic quantization). The product is
exact in int32, so the result for a vector does not depend on the other vectors of the batch.
Shapes: K inputs, N outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Int8Matrix(NamedTuple):
    """Quantized matrix (N, K), equal to `values` * `scales`."""

    values: Tensor  # (N, K) int8, from -127 to 127
    scales: Tensor  # (N, 1) in fp32


def quantize_rows(x: Tensor) -> Int8Matrix:
    """Quantize a matrix (N, K) in fp32 to int8, with one scale for each row."""
    scales = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return Int8Matrix((x / scales).round().to(torch.int8), scales)


def int8_linear(x: Tensor, weight: Int8Matrix, bias: Tensor | None) -> Tensor:
    """Compute x @ weight.T + bias in the data type of x (..., K), with x quantized to int8."""
    rows = quantize_rows(x.reshape(-1, x.shape[-1]).float())
    y = torch._int_mm(rows.values, weight.values.T).float()  # (B, N)
    y.mul_(rows.scales).mul_(weight.scales.T)
    if bias is not None:
        y.add_(bias)
    return y.to(x.dtype).view(*x.shape[:-1], len(weight.values))
