"""Data types under autocast."""

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the data type of matrix products under autocast.

    The result is None without autocast, and for a tensor in fp64.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return None


def cast_once(x: Tensor) -> Tensor:
    """Convert the input of several matrix products to their data type under autocast.

    Otherwise, each product would convert it, keep a copy of its own for the backward pass, and
    convert its gradient back.
    """
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)
