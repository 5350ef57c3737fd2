"""How deep each weight stands, for what learns, and how fast, by its layer."""

import re

from torch import nn


def depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """How deep each parameter stands, by name; and how deep a head stands, whether there is one.

    0 for what enters, i + 1 for block i, and one more than there are blocks for what stands on top
    of the last; a last norm goes with the last block, and so does a stack without blocks. Of a
    residual network the four stages are the blocks.
    """
    block = re.compile(r"\bblocks\.(\d+)\.|^net\.layer(\d)\.")  # counted from 0, and from 1
    enters = re.compile(
        r"(\w+_)?embed\.|\w+_norm\.|(\w+_)?(stack|encoder|decoder)\.bias\.|net\.(conv|bn)1\."
    )
    closes = re.compile(r"(\w+_)?(stack|encoder|decoder)\.")
    names = [name for name, _ in model.named_parameters()]
    inside = {n: int(x[1] or x[2]) + bool(x[1]) for n in names if (x := block.search(n))}
    last = max(inside.values(), default=0)

    def depth(name: str) -> int:
        if name in inside or enters.match(name):
            return inside.get(name, 0)
        return last if closes.match(name) else last + 1

    return {name: depth(name) for name in names}, last + 1
