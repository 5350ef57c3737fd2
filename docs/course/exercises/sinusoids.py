"""Exercise sinusoids of page 7: `fourfold learn sinusoids` checks this file."""

import torch


def sinusoids(t, d):
    """Return the positions 0 to t - 1 of Vaswani et al. (2017) as a matrix (t, d), d even.

    The channels 2i and 2i + 1 are sine and cosine of the position times 10000^(-2i/d).
    """
    raise NotImplementedError
