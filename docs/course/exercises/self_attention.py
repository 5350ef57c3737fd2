"""Exercise self_attention of page 5: `fourfold learn self_attention` checks this file."""

import torch


def self_attention(x, w_q, w_k, w_v):
    """Return self-attention of one head with the scale 1/√Dk, without a mask and without biases.

    The tokens x have the shape (B, T, D), w_q and w_k the shape (D, Dk), w_v the shape (D, Dv), and
    the result (B, T, Dv).
    """
    raise NotImplementedError
