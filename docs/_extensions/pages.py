"""Adjustments of the pages: folded answers, links to folders, titles, notebooks for download."""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from drawing import for_notebook
from sphinx import addnodes
from sphinx.application import Sphinx

from fourfold.commands.course import notebooks


def fold_answers(app: Sphinx, document: nodes.document) -> None:
    """Make each admonition with the class `dropdown` an element that opens on a click."""
    for node in document.findall(nodes.admonition):
        if "dropdown" in node["classes"]:
            node["collapsible"], node["open"] = True, False


def keep_folders_as_text(app: Sphinx, document: nodes.document) -> None:
    """Replace each link to a folder, which has no page, by its text."""
    folder = Path(document["source"]).parent
    for node in list(document.findall(addnodes.pending_xref)):
        if node["reftype"] == "myst" and (folder / node["reftarget"]).is_dir():
            node.replace_self(node.children)


def allow_fragments(app: Sphinx, document: nodes.document) -> None:
    """Give a page without a title, such as a finding, its path as title in the search.

    Such a page is absent from every table of contents.
    """
    page = app.env.docname
    if next(iter(document.findall(nodes.title)), None) is None:
        app.env.metadata[page]["orphan"] = True
        app.env.titles[page] = app.env.longtitles[page] = nodes.title(page, page)


def name_benchmarks(app: Sphinx, document: nodes.document) -> None:
    """Append its folder to the title of a benchmark, because most benchmarks have one title."""
    folder = re.fullmatch("results/bench/(.+)/bench", app.env.docname)
    title = next(iter(document.findall(nodes.title)), None)
    if folder and title is not None:
        title += nodes.Text(f": {folder[1]}")


def link_to_sources(app: Sphinx, document: nodes.document, page: str) -> None:
    """Replace the download of a module of fourfold by its page with highlighted source text."""
    for node in list(document.findall(addnodes.download_reference)):
        folder, _, name = node["reftarget"].rpartition("src/")
        module = name.removesuffix(".py").replace("/", ".")
        if folder and getattr(app.env, "_viewcode_modules", {}).get(module):
            address = app.builder.get_relative_uri(page, f"_modules/{module.replace('.', '/')}")
            node.replace_self(nodes.reference("", "", *node.children, refuri=address))


def offer_notebook(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Write the notebook of an executed page next to it and link to it at the top of the page."""
    if document is None:  # the search and the index
        return
    text = app.env.doc2path(page).read_text(encoding="utf-8")
    if not text.startswith(notebooks.NOTEBOOK):
        return
    result = notebooks.notebook(for_notebook(text))
    result["metadata"] = notebooks.notebook(text)["metadata"]  # has a checksum of the page
    # MyST-NB stores the executed notebook, which lacks the first cell of ours.
    executed = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    stored = json.loads(executed.read_text(encoding="utf-8")) if executed.exists() else result
    cells, outputs = (
        [cell for cell in each["cells"] if cell["cell_type"] == "code"] for each in (result, stored)
    )
    for cell, output in zip(cells[-len(outputs) :], outputs, strict=True):
        cell["outputs"], cell["execution_count"] = output["outputs"], output["execution_count"]
    notebook = Path(app.outdir, f"{page}.ipynb")
    notebook.parent.mkdir(parents=True, exist_ok=True)
    notebook.write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")
    link = f'<p><a href="{notebook.name}" download>Download this page as a notebook</a></p>'
    context["body"] = link + context["body"]


def write_entry(app: Sphinx, error: Exception | None) -> None:
    """Write `index.html` at the top of the site, which opens the first page."""
    first = f"{app.config.root_doc}.html"
    text = f'<title>fourfold</title><meta http-equiv="refresh" content="0; url={first}">'
    Path(app.outdir, "index.html").write_text(f"<!doctype html>{text}\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the adjustments."""
    for adjust in (fold_answers, keep_folders_as_text, allow_fragments):
        app.connect("doctree-read", adjust)
    app.connect("doctree-read", name_benchmarks, priority=400)  # before Sphinx collects titles
    app.connect("doctree-resolved", link_to_sources)
    app.connect("html-page-context", offer_notebook)
    app.connect("build-finished", write_entry)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
