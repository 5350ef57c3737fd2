"""Data types under autocast."""

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the data type of matrix products under autocast.

    The result is None without autocast, for a tensor in fp64, and on the meta device.
    """
    device = x.device.type
    if x.dtype != torch.float64 and not x.is_meta and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def cast_once(x: Tensor) -> Tensor:
    """Convert the input of several matrix products to their data type under autocast.

    Otherwise, each product would convert it, keep a copy of its own for the backward pass, and
    convert its gradient back.
    """
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)
