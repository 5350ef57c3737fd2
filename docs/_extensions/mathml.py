"""Formulas as MathML, which browsers draw without a script or the network, and their font.

The font STIX Two Math has the tables from which a browser takes the sizes of brackets, roots and
fractions. It is part of the package ziamath. Its licence, the SIL Open Font License 1.1, allows the
subset that the build writes; its notices stay in the file.
"""

import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from fontTools import subset
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

# What latex2mathml lacks, and an equivalent.
REPLACEMENTS = {r"\\arg(?![a-zA-Z])": r"\\operatorname{arg}", r"{aligned}": "{align*}"}
UNKNOWN = re.compile(r"<mi>(\\[a-zA-Z]+|&)</mi>")  # a command, or a column outside a table
NAMESPACE = "http://www.w3.org/1998/Math/MathML"
# Elements whose children stand side by side.
ROWS = {"math", "mrow", "mstyle", "mtd", "msqrt", "mpadded"}
SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
CLOSING = (")", "]", "}", "⟩")
THIN_SPACE = {"width": "0.1667em"}
FONT = "STIXTwoMath.woff"
# Latin, Greek, punctuation, accents, letters, arrows, operators, brackets, alphabets of formulas.
CHARACTERS = [
    *(*range(0x20, 0x7F), *range(0xA0, 0x100), *range(0x391, 0x3F6), *range(0x2010, 0x2060)),
    *(*range(0x20D0, 0x20E2), *range(0x2100, 0x2150), *range(0x2190, 0x2300)),
    *(*range(0x2308, 0x230C), *range(0x239B, 0x23B8), *range(0x25A0, 0x2600)),
    *(*range(0x27E6, 0x2800), *range(0x2A00, 0x2A40), *range(0x1D400, 0x1D504)),
    *(*range(0x1D538, 0x1D56C), *range(0x1D6A4, 0x1D800)),
]


def tag(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def is_function(element: ElementTree.Element) -> bool:
    """Return whether an element is the name of a function, such as log, with or without scripts."""
    if tag(element) in SCRIPTS:
        return is_function(element[0])
    return tag(element) == "mi" and len(element.text or "") > 1


def starts_with_sign(element: ElementTree.Element) -> bool:
    """Return whether an element is an operator or bracket, or begins with a bracket."""
    return tag(element) == "mo" or (
        tag(element) == "mrow" and len(element) > 0 and element[0].get("fence") == "true"
    )


def ends_with_sign(element: ElementTree.Element) -> bool:
    """Return whether an element is an operator or an opening bracket."""
    return tag(element) == "mo" and (element.text or "") not in CLOSING


def space_functions(root: ElementTree.Element) -> None:
    """Set a thin space between the name of a function and a neighbor, except for a sign."""
    for element in root.iter():
        # A browser sets the spaces of an unknown operator around an <mo>.
        if tag(element) == "mo" and re.fullmatch("[A-Za-z ]{2,}", element.text or ""):
            element.tag = f"{{{NAMESPACE}}}mi"
    for row in [element for element in root.iter() if tag(element) in ROWS]:
        for left, right in pairwise(list(row)):
            touches = not (ends_with_sign(left) or starts_with_sign(right))
            if touches and (is_function(left) or is_function(right)):
                space = ElementTree.Element(f"{{{NAMESPACE}}}mspace", THIN_SPACE)
                row.insert(list(row).index(right), space)


def to_mathml(node: nodes.Element, display: str) -> str:
    """Convert the formula of a node; warn of a command that latex2mathml does not know."""
    formula = node.astext()
    for pattern, replacement in REPLACEMENTS.items():
        formula = re.sub(pattern, replacement, formula)
    text = convert(formula, display=display)
    for command in UNKNOWN.findall(text):
        message = "%s in a formula cannot be converted to MathML"
        logging.getLogger(__name__).warning(message, command, location=node)
    root = ElementTree.fromstring(text)
    space_functions(root)
    return ElementTree.tostring(root, encoding="unicode")


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


def write_font(target: Path) -> None:
    """Write the characters of formulas of the font of ziamath as a web font."""
    package = find_spec("ziamath")
    if package is None or package.origin is None:
        message = "the font of the formulas is missing; install ziamath, or run `make setup`"
        logging.getLogger(__name__).warning(message)
        return
    source = Path(package.origin).with_name("fonts") / "STIXTwoMath-Regular.ttf"
    subset.log.setLevel("WARNING")
    options = subset.Options(flavor="woff", layout_features=["ssty"], name_IDs=["*"])
    font = subset.load_font(source, options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=CHARACTERS)
    subsetter.subset(font)
    target.parent.mkdir(parents=True, exist_ok=True)
    subset.save_font(font, target, options)


def add_font(app: Sphinx, error: Exception | None) -> None:
    """Write the font, to which site.css refers, to the finished site."""
    if error is None and app.builder.format == "html":
        write_font(Path(app.outdir, "_static", FONT))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer `mathml` and its font."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("build-finished", add_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


ElementTree.register_namespace("", NAMESPACE)
