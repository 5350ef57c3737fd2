"""SVG drawings, whose colors are CSS variables of the light and the dark theme.

A drawing is at most 340 units wide, as a narrow screen, so that a text of 11 units has 11 pixels
there. The colors are in `docs/_static/drawings.css`.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

WIDTH = 340
SMALLEST = 11  # size of a text, in pixels on a screen of 375 pixels
# A part in braces is lowered after `_` and raised after `^`, as in LaTeX.
_SCRIPT = re.compile(r"([_^])\{([^}]*)\}")


class Canvas:
    """List of the elements of a drawing, from back to front.

    A color is the name of a pair of variables in the style: the fill and the line. `ink` and
    `muted` are colors of texts.
    """

    def __init__(self, height: float) -> None:
        self.height = height
        self.parts: list[str] = []

    def svg(self, label: str, style: str = "") -> str:
        """Return the element, with a label for those who do not see it.

        With a style it is a file of its own, which has a size and a background.
        """
        size = f"0 0 {WIDTH} {_number(self.height)}"
        start = f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" viewBox="{size}"'
        before = ""
        if style:
            start += f' width="{1.4 * WIDTH}" height="{1.4 * self.height}"'
            before = f'<style>{style}</style><rect class="paper" width="100%" height="100%"/>'
        label = escape(label)
        return f'{start} role="img" aria-label="{label}">{before}{"".join(self.parts)}</svg>'

    def _add(self, name: str, classes: str, content: str = "", **values: float | str) -> None:
        pairs = "".join(f' {key.replace("_", "-")}="{_number(v)}"' for key, v in values.items())
        self.parts.append(f'<{name} class="{classes}"{pairs}>{content}</{name}>')

    def rectangle(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        color: str,
        *,
        kind: str = "",
        radius: float = 5,
    ) -> None:
        """Draw a rectangle; `kind` is dashed, bare (no fill), plain (no line) or empty."""
        self._add("rect", f"d-{color} {kind}".strip(), x=x, y=y, width=w, height=h, rx=radius)

    def text(
        self, x: float, y: float, text: str, size: float = 12, *, at: str = "middle",
        color: str = "ink", bold: bool = False, turn: float = 0,
    ) -> None:  # fmt: skip
        """Write a line of text, whose middle is at height `y`; `at` is start, middle or end."""
        content = "".join(_spans(text, size))
        classes = f"t-{color}" + (" bold" if bold else "")
        values: dict[str, float | str] = {"x": x, "y": y + 0.35 * size, "font_size": size}
        if turn:
            values["transform"] = f"rotate({_number(turn)} {_number(x)} {_number(y)})"
        self._add("text", classes, content, text_anchor=at, **values)

    def lines(
        self, x: float, y: float, lines: Sequence[str], size: float = 11, **options: str
    ) -> None:
        """Write lines of text below one another; the first one is at height `y`."""
        for number, line in enumerate(lines):
            self.text(x, y + 1.25 * size * number, line, size, **options)

    def box(
        self, x: float, y: float, w: float, h: float, label: str, color: str, *, size: float = 12,
        kind: str = "", bold: bool = False,
    ) -> None:  # fmt: skip
        """Draw a rectangle with one or more lines of text in its middle."""
        self.rectangle(x, y, w, h, color, kind=kind)
        lines = label.split("\n")
        first = y + h / 2 - 1.2 * size * (len(lines) - 1) / 2
        for number, line in enumerate(lines):
            self.text(x + w / 2, first + 1.2 * size * number, line, size, bold=bold)

    def path(
        self, points: Sequence[tuple[float, float]], color: str = "grey", *, head: bool = True,
        kind: str = "",
    ) -> None:  # fmt: skip
        """Draw a line through points, with an arrowhead at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        angle = math.atan2(y1 - y0, x1 - x0)
        end = (x1 - 4 * math.cos(angle), y1 - 4 * math.sin(angle)) if head else (x1, y1)
        line = " ".join(f"{_number(x)},{_number(y)}" for x, y in [*points[:-1], end])
        self._add("polyline", f"l-{color} {kind}".strip(), points=line)
        if head:
            corners = [(x1, y1)]
            for side in (2.65, -2.65):  # 152 degrees from the direction of the line
                corners.append((x1 + 8 * math.cos(angle + side), y1 + 8 * math.sin(angle + side)))
            triangle = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
            self._add("polygon", f"h-{color}", points=triangle)

    def state(self, x: float, y: float, label: str, color: str, kind: str = "") -> None:
        """Draw a circle with a label, the state of a recurrent network."""
        self._add("circle", f"d-{color} {kind}".strip(), cx=x, cy=y, r=15)
        self.text(x, y - 1, label, 14)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], color: str, w: float
    ) -> None:
        """Draw a line of the width `w`, without an arrowhead."""
        (x1, y1), (x2, y2) = start, end
        self._add("line", f"l-{color}", x1=x1, y1=y1, x2=x2, y2=y2, style=f"stroke-width:{w:.1f}")

    def plus(self, x: float, y: float, color: str = "grey") -> None:
        """Draw a plus in a circle, the sum of a residual connection."""
        self._add("circle", f"d-{color}", cx=x, cy=y, r=9)
        self._add(
            "path",
            f"l-{color}",
            d=f"M{_number(x - 5)} {_number(y)}h10M{_number(x)} {_number(y - 5)}v10",
        )

    def grid(
        self, x: float, y: float, rows: int, columns: int, cell: float, color: str,
        shade: Callable[[int, int], float] | None = None, frame: int | None = None,
    ) -> None:  # fmt: skip
        """Draw a matrix of square cells.

        Args:
            shade: Function of row and column with the opacity of a cell, from 0 to 1.
            frame: Row with a thick frame.
        """
        for row in range(rows):
            for column in range(columns):
                place = {"x": x + cell * column, "y": y + cell * row, "width": cell, "height": cell}
                self._add("rect", "d-paper", **place)
                opacity = 0.45 if shade is None else shade(row, column)
                if opacity > 0:
                    self._add("rect", f"s-{color}", fill_opacity=opacity, **place)
        if frame is not None:
            place = {"x": x, "y": y + cell * frame, "width": cell * columns, "height": cell}
            self._add("rect", "frame", **place)


def _spans(text: str, size: float) -> Iterator[str]:
    """Yield the parts of a line of text; a part after a script returns to the line."""
    height = 0.0  # of the part before, downwards
    for number, part in enumerate(_SCRIPT.split(text)):
        if number % 3 == 1:  # the sign of the script, which is the next part
            target = 0.25 * size if part == "_" else -0.35 * size
            continue
        here, small = (target, max(SMALLEST, 0.75 * size)) if number % 3 == 2 else (0.0, size)
        if part:
            values = f'dy="{_number(here - height)}" font-size="{_number(small)}"'
            yield f"<tspan {values}>{escape(part)}</tspan>" if number else escape(part)
            height = here


def _number(value: float | str) -> str:
    """Write a number with at most two digits after the point."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
