"""Directive `drawing`, which shows one of the drawings of the package `drawings`."""

import re
from base64 import b64encode
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from drawings import DRAWINGS, element, standalone
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# The block of the directive in a page, which a notebook shows as text.
BLOCK = re.compile(
    r"^```\{drawing\} (\S+)\n:alt: ([^\n]+)\n\n?(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Drawing(SphinxDirective):
    """Figure with a drawing, whose content is the caption; the option `alt` is required."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the figure."""
        (name,) = self.arguments
        if name not in DRAWINGS:
            raise self.error(f"no drawing {name!r}; the names are {', '.join(DRAWINGS)}")
        if "alt" not in self.options:
            raise self.error(f"the drawing {name!r} needs a text with :alt:")
        figure = nodes.figure("", classes=["drawing-figure"])
        self.set_source_info(figure)
        figure += nodes.raw("", element(name, self.options["alt"]), format="html")
        if self.content:
            caption = nodes.caption("", "")
            parsed = self.parse_content_to_nodes()
            caption += parsed[0].children
            figure += caption
        return [figure]


def for_notebook(text: str) -> str:
    """Replace each directive of a page by an image file in the text, and its caption."""

    def image(found: re.Match[str]) -> str:
        name, label, caption = found.groups()
        data = b64encode(standalone(name, label).encode()).decode()
        return f"![{label}](data:image/svg+xml;base64,{data})\n\n{caption.strip()}\n"

    return BLOCK.sub(image, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and the style of the drawings."""
    app.add_directive("drawing", Drawing)
    app.add_css_file("drawings.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
