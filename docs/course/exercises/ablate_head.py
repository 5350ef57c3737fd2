"""Exercise ablate_head of page 16: `fourfold learn ablate_head` checks this file."""

import torch


def ablate_head(z, weight, bias, h):
    """Return the output (B, T, D) of multi-head attention in which head h contributes nothing.

    z (B, H, T, Dv) has the results of the heads, and the output matrix y = x weightᵀ + bias, as in
    nn.Linear, is applied to the results side by side. Its weight is (D, H · Dv).
    """
    raise NotImplementedError
