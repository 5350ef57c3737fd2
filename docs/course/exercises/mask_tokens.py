"""Exercise mask_tokens of page 13: `fourfold learn mask_tokens` checks this file."""

import torch


def mask_tokens(ids, special_ids, mask_id, vocab_size):
    """Return the inputs and the labels of BERT for the token ids (B, T).

    Each ordinary token is a target with probability 15 %, a special one never. 80 % of the targets
    become the mask token, 10 % a random id below vocab_size, and 10 % stay. The label of a target
    is its id, and -100 elsewhere.
    """
    raise NotImplementedError
