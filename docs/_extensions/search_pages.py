"""Search without a server: texts of the pages for its summaries, and the headings of lectures."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

COVERAGE = "docs/course/coverage"  # its tables lead from headings of lectures to sections
ROW = re.compile(r"^\| (?:[\d.]+ )?([^|]+?) \| (\[[^|]+) \|", re.M)
LINK = re.compile(r"\]\(([\w-]+)\.md(?:#([\w-]+))?\)")
LEFT_OUT = (nodes.literal_block, nodes.doctest_block, nodes.math_block, nodes.raw, nodes.comment)
TEXTS = "page_texts.js"
HEADINGS: dict[str, dict[str, str]] = {}  # by page: the anchor of each heading


def lecture_headings(app: Sphinx) -> None:
    """Read for which section of which page the headings of the lectures stand."""
    file = app.env.doc2path(COVERAGE)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    links: dict[str, list[tuple[str, str]]] = {}
    for heading, pages in ROW.findall(text):
        links.setdefault(heading.lower(), []).extend(LINK.findall(pages))
    HEADINGS.clear()
    for heading, found in links.items():  # the page to which most lectures lead
        ((page, _),) = Counter(page for page, _ in found).most_common(1)
        HEADINGS.setdefault(f"docs/course/{page}", {})[heading] = dict(reversed(found))[page]


def add_headings(app: Sphinx, document: nodes.document) -> None:
    """Let the search find a page by the headings of the lectures that it treats."""
    headings = HEADINGS.get(app.env.docname, {})
    sections = {
        section.get("slug") or section["ids"][0]: section["ids"][0]
        for section in document.findall(nodes.section)
    }
    entries = [
        ("single", heading, sections.get(anchor, ""), "main", None)
        for heading, anchor in headings.items()
    ]
    if entries:
        document.insert(0, addnodes.index(entries=entries))


def as_html(node: nodes.Node) -> Iterator[str]:
    """Yield the text of a page without code and formulas, with the anchors of its sections."""
    for child in node.children:
        if isinstance(child, LEFT_OUT):
            continue
        if isinstance(child, nodes.section):
            yield f'<div id="{escape(child["ids"][0])}">'
        if isinstance(child, nodes.TextElement):
            yield escape(child.astext()) + "\n"
        else:
            yield from as_html(child)
        if isinstance(child, nodes.section):
            yield "</div>"


def write_texts(app: Sphinx, error: Exception | None) -> None:
    """Write the text of each page to a script that the page of the search loads."""
    if error or app.builder.format != "html":
        return
    texts = {
        page: "".join(as_html(app.env.get_doctree(page))) for page in sorted(app.env.found_docs)
    }
    script = f"const pageTexts = {json.dumps(texts, ensure_ascii=False)};\n"
    Path(app.outdir, "_static", TEXTS).write_text(script, encoding="utf-8")


def load_texts(app: Sphinx, page: str, *_: Any) -> None:
    """Load the texts in the page of the search alone."""
    if page == "search":
        app.add_js_file(TEXTS)
        app.add_js_file("search_summaries.js")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the adjustments."""
    app.connect("builder-inited", lecture_headings)
    app.connect("doctree-read", add_headings)
    app.connect("html-page-context", load_texts)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
