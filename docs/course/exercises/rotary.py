"""Exercise rotary of page 7: `fourfold learn rotary` checks this file."""

import torch


def rotary(q, k, positions):
    """Return q and k, both (B, H, T, Dh), with each pair of channels rotated.

    Pair i turns counterclockwise by the angle positions[t] · 10000^(-2i/Dh). The pairs are the
    channels (2i, 2i + 1) or (i, i + Dh/2), as you like. The positions have the shape (T,).
    """
    raise NotImplementedError
