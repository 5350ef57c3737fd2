"""Formulas as MathML, which browsers draw without a script, a font or the network."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number


def visit_inline(writer: Any, node: nodes.math) -> None:
    """Write a formula of a line of text."""
    writer.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number and anchor if it has a label."""
    anchors = "".join(f' id="{name}"' for name in node["ids"][:1])
    number = f"<span>({get_node_equation_number(writer, node)})</span>" if node["number"] else ""
    formula = convert(node.astext(), display="block")
    writer.body.append(f'<div class="math"{anchors}>{formula}{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
