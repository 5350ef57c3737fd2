"""Exercise masked_softmax of page 6: `fourfold learn masked_softmax` checks this file."""

import torch


def masked_softmax(scores, mask):
    """Return the attention weights (B, Tq, Tk) for scores of this shape and a mask (Tq, Tk).

    The mask is True where the query may see the key. Hidden keys get the weight 0, whatever their
    scores are, and the weights of a query sum to 1. A query may also see no key: all of its
    weights are then 0, and the gradient is finite.
    """
    raise NotImplementedError
