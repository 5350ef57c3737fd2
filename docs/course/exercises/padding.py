"""Exercise padding of page 6: `fourfold learn padding` checks this file."""

import torch


def encode(x, mask):
    """Return softmax(x xᵀ / √D) x for a padded batch x (B, T, D).

    The mask (B, T) is True for real tokens. The outputs of real tokens are those without padding,
    which may stand anywhere and have any content. The outputs of padding do not matter.
    """
    raise NotImplementedError
