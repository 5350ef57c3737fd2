"""Exercise causal_mask of page 6: `fourfold learn causal_mask` checks this file."""

import torch


def causal_mask(t):
    """Return a mask (t, t) of bools: True where the query (row) may see the key (column)."""
    raise NotImplementedError
