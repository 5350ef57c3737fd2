"""A way by its name: ours or a peer's."""

from fourfold.bench import ours
from fourfold.bench.peers.table import build_peer
from fourfold.bench.shapes import OURS, Settings, Shape
from fourfold.bench.ways import Way


def build(name: str, family: str, shape: Shape, settings: Settings) -> Way:
    """The model of a family that `name` stands for.

    Raises:
        Absent: A peer that is not here.
        InputError: The file given for nanoGPT is another one.
    """
    if name == OURS:
        return ours.build(family, shape, settings.dropout)
    return build_peer(name, family, shape, settings)
