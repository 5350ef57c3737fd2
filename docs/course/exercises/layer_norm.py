"""Exercise layer_norm of page 8: `fourfold learn layer_norm` checks this file."""

import torch


def layer_norm(x, eps):
    """Normalize the features of each token of x (B, T, D) to mean 0 and variance 1.

    The number eps is added to the variance, under the root. There are no gain and no bias.
    """
    raise NotImplementedError
