"""Drawings of the course by their names, which the directive `drawing` shows."""

from collections.abc import Callable
from pathlib import Path

from drawings import architecture, attention, generation, recurrent, vision
from drawings.canvas import Canvas

STYLE = Path(__file__).resolve().parents[2] / "_static" / "drawings.css"
DRAWINGS: dict[str, Callable[[], Canvas]] = {
    "bottleneck": recurrent.bottleneck,
    "recurrent-attention": recurrent.attention,
    "encoder-decoder": architecture.encoder_decoder,
    "block": architecture.block,
    "qkv": attention.qkv,
    "heads": attention.heads,
    "masks": attention.masks,
    "cache": generation.cache,
    "patches": vision.patches,
    "beam-tree": generation.beam_tree,
}


def element(name: str, label: str) -> str:
    """Return a drawing for a page with the style of the site."""
    return DRAWINGS[name]().svg(label)


def standalone(name: str, label: str) -> str:
    """Return a drawing as a file of its own, which contains the style."""
    return DRAWINGS[name]().svg(label, STYLE.read_text(encoding="utf-8"))
