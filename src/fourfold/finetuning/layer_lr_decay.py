"""Layer-wise learning-rate decay, and the layer index of each parameter."""

import re

from torch import nn

# Blocks are counted from 0, the stages of a ResNet from 1.
BLOCK = re.compile(r"\bblocks\.(\d+)\.|^net\.layer(\d)\.")
EMBEDDING = re.compile(
    r"(\w+_)?embed\.|\w+_norm\.|(\w+_)?(stack|encoder|decoder)\.bias\.|net\.(conv|bn)1\."
)
STACK = re.compile(r"(\w+_)?(stack|encoder|decoder|words|sentences)\.")


def layer_ids(model: nn.Module) -> tuple[dict[str, int], int]:
    """Return the layer index of each parameter by name, and the layer index of the head.

    The index is 0 for embeddings, i + 1 for block i, and the number of blocks + 1 for the head. A
    final norm has the index of the last block. The four stages of a ResNet count as blocks. An LSTM
    and a GRU have no blocks, so their parameters have the index 0 and the head has the index 1.

    Returns:
        A dict from parameter names to layer indices, and the layer index of the head.

    Example:
        >>> from fourfold.models import create
        >>> ids, head = layer_ids(create("gpt2", n_layers=2, vocab_size=9))
        >>> ids["embed.tokens.weight"], ids["stack.blocks.1.attn.q.weight"], head
        (0, 2, 3)
    """
    names = [name for name, _ in model.named_parameters()]
    blocks: dict[str, int] = {}
    for name in names:
        if match := BLOCK.search(name):
            blocks[name] = int(match[1]) + 1 if match[1] else int(match[2])
    last = max(blocks.values(), default=0)

    def layer_id(name: str) -> int:
        if name in blocks:
            return blocks[name]
        if EMBEDDING.match(name):
            return 0
        return last if STACK.match(name) else last + 1

    return {name: layer_id(name) for name in names}, last + 1


def layer_lr_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Return the factor of layer-wise learning-rate decay for each parameter, by name.

    The factor is 1 for the head and ``layer_decay**k`` for a parameter k layers below the head
    (Clark et al. 2020, ELECTRA; Bao et al. 2021, BEiT).

    Args:
        layer_decay: Learning rate of a layer divided by that of the next layer towards the head.

    Returns:
        Dictionary from parameter names to factors on the learning rate.

    Example:
        >>> from fourfold.models import create
        >>> scales = layer_lr_scales(create("gpt2", n_layers=2, vocab_size=9), 0.5)
        >>> scales["embed.tokens.weight"], scales["stack.blocks.1.attn.q.weight"]
        (0.125, 0.5)
    """
    ids, head = layer_ids(model)
    return {name: layer_decay ** (head - layer) for name, layer in ids.items()}
