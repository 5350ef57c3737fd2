"""Formulas as MathML, which browsers draw without a script, a font or the network."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

# What latex2mathml lacks, and an equivalent.
REPLACEMENTS = {r"\\arg(?![a-zA-Z])": r"\\operatorname{arg}", r"{aligned}": "{align*}"}
UNKNOWN = re.compile(r"<mi>(\\[a-zA-Z]+|&)</mi>")  # a command, or a column outside a table


def to_mathml(node: nodes.Element, display: str) -> str:
    """Convert the formula of a node; warn of a command that latex2mathml does not know."""
    formula = node.astext()
    for pattern, replacement in REPLACEMENTS.items():
        formula = re.sub(pattern, replacement, formula)
    text = convert(formula, display=display)
    for command in UNKNOWN.findall(text):
        message = "%s in a formula cannot be converted to MathML"
        logging.getLogger(__name__).warning(message, command, location=node)
    return text


def visit_inline(writer: Any, node: nodes.math) -> None:
    """Write a formula of a line of text."""
    writer.body.append(to_mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number and anchor if it has a label."""
    anchors = "".join(f' id="{name}"' for name in node["ids"][:1])
    number = f"<span>({get_node_equation_number(writer, node)})</span>" if node["number"] else ""
    writer.body.append(f'<div class="math"{anchors}>{number}{to_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
