"""Dark versions of the figures of Matplotlib, which the kernels of executed pages draw.

The kernels load this module as an extension of IPython (see conf.py). For each figure that a cell
shows, it writes a second picture for the dark theme, named by the digest of the first. The
extension `figures` of Sphinx shows both.
"""

import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from IPython.core import pylabtools
from matplotlib.artist import Artist
from matplotlib.collections import Collection, QuadMesh
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

FOLDER = "FOURFOLD_DARK_FIGURES"  # environment variable
PAPER, INK = 0.08, 0.9  # lightness of the background of the theme, and of its text
COLORS: dict[type[Artist], tuple[str, ...]] = {
    Text: ("color",),
    Line2D: ("color", "markerfacecolor", "markeredgecolor"),
    Patch: ("facecolor", "edgecolor"),
    Collection: ("facecolor", "edgecolor"),
}


def darkened(color: tuple[float, ...]) -> tuple[float, ...]:
    """Exchange light and dark in a shade of grey, and keep another color."""
    *channels, alpha = color
    if max(channels) - min(channels) > 0.08:
        return color
    return (*(INK + (PAPER - INK) * channel for channel in channels), alpha)


def over_pictures(figure: Figure) -> set[Artist]:
    """Return the artists on top of heat maps, whose colors were chosen for those of the map."""
    axes = [
        axis
        for axis in figure.axes
        if axis.images or any(isinstance(artist, QuadMesh) for artist in axis.collections)
    ]
    groups = [(*axis.texts, *axis.lines, *axis.patches, *axis.collections) for axis in axes]
    return {artist for group in groups for artist in group}


@contextmanager
def dark_colors(figure: Figure) -> Iterator[None]:
    """Context in which the figure has the colors of the dark theme."""
    artists = figure.findobj()
    artists += [text.arrow_patch for text in artists if getattr(text, "arrow_patch", None)]
    kept, colors = over_pictures(figure), []
    for artist in artists:
        names = [name for kind in COLORS if isinstance(artist, kind) for name in COLORS[kind]]
        # Colors that a map computes from numbers are kept, too.
        if artist not in kept and getattr(artist, "get_array", lambda: None)() is None:
            colors += [(artist, name, getattr(artist, f"get_{name}")()) for name in names]
    for artist, name, color in colors:
        rows = [darkened(tuple(row)) for row in to_rgba_array(color)]
        getattr(artist, f"set_{name}")(rows if isinstance(artist, Collection) else rows[0])
    try:
        yield
    finally:
        for artist, name, color in colors:
            getattr(artist, f"set_{name}")(color)


def print_both(print_figure: Any, figure: Figure, fmt: str = "png", **options: Any) -> Any:
    """Return the picture of a figure, and write its dark version."""
    light = print_figure(figure, fmt=fmt, **options)
    if light and fmt == "png":
        png = b64decode(light) if isinstance(light, str) else light
        with dark_colors(figure):
            dark = print_figure(figure, fmt=fmt, **{**options, "base64": False})
        folder = Path(os.environ[FOLDER])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{sha256(png).hexdigest()}.png").write_bytes(dark)
    return light


def load_ipython_extension(shell: Any) -> None:
    """Start to write dark versions, in the kernel of a page."""
    pylabtools.print_figure = partial(print_both, pylabtools.print_figure)
