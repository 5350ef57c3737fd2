"""The pages of the documentation site: tables of contents, headers, code cells, notebooks."""

import importlib
import posixpath
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import jupytext
import nbformat
import pytest
from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COURSE = sorted((DOCS / "course").glob("[0-9][0-9]-*.md"))
WITH_FORMULAS = [DOCS / "batch-invariance.md", *COURSE]
ALIGNED = r"\begin{aligned} a &= b \\ c &= d \end{aligned}"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


def pages() -> dict[str, Path]:
    """Return the pages of the site by their names, which lack the ending."""
    files = [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst"), *(ROOT / "results").rglob("*.md")]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return {file.relative_to(ROOT).with_suffix("").as_posix(): file for file in files}


def listed(page: str, text: str, names: set[str]) -> set[str]:
    """Return the pages in the tables of contents of a page."""
    found = set()
    for table in TOCTREE.findall(text):
        for line in table.splitlines():
            if line and not line.startswith(":"):
                target = line.partition("<")[2].removesuffix(">") or line  # Title <page>
                place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
                found |= {name for name in names if fnmatchcase(name, place.replace("**", "*"))}
    return found


def test_every_page_with_a_title_is_in_a_table_of_contents() -> None:
    texts = {name: file.read_text(encoding="utf-8") for name, file in pages().items()}
    found, waiting = {"docs/index"}, ["docs/index"]
    while waiting:
        page = waiting.pop()
        new = listed(page, texts[page], set(texts)) - found
        found |= new
        waiting += new
    titled = {name for name in texts if re.search("^(# |={3,}$)", texts[name], re.MULTILINE)}
    assert not titled - found


def test_a_table_of_contents_is_read_as_meant() -> None:
    text = "```{toctree}\n:glob:\n\nTitle <../b>\nc/*\n```\n"
    assert listed("docs/a", text, {"b", "docs/b", "docs/c/d", "docs/e"}) == {"b", "docs/c/d"}


@pytest.mark.parametrize("page", COURSE, ids=lambda page: page.stem)
def test_a_page_of_the_course_is_a_notebook(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(HEADER)
    notebook = jupytext.reads(text, fmt="md:myst")
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == len(re.findall(r"^```\{code-cell\} ipython3$", text, re.MULTILINE)) > 0
    for number, source in enumerate(cells, 1):
        compile(source, f"{page.name}, cell {number}", "exec")


@pytest.mark.parametrize(
    "page", [DOCS / "batch-invariance.md", *COURSE], ids=lambda page: page.stem
)
def test_formulas_become_mathml(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    mathml = importlib.import_module("mathml")
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    formulas = re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", text, re.DOTALL)
    assert formulas
    for block, inline in formulas:
        converted = mathml.to_mathml(nodes.math(text=block or inline), "inline")
        assert not mathml.UNKNOWN.search(converted), block or inline


def test_an_unknown_command_in_a_formula_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    mathml = importlib.import_module("mathml")
    for formula, found in ((r"\foo x", [r"\foo"]), (r"\arg\max_x x", []), (ALIGNED, [])):
        converted = mathml.to_mathml(nodes.math(text=formula), "inline")
        assert mathml.UNKNOWN.findall(converted) == found


def test_the_command_of_jupytext_writes_a_notebook(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{HEADER}\n# Title\n\n```{{code-cell}} ipython3\n1 + 1\n```\n")
    command = [
        sys.executable,
        "-m",
        "jupytext",
        "--to",
        "ipynb",
        str(COURSE[0] if COURSE else page),
    ]
    written = tmp_path / "written.ipynb"
    subprocess.run([*command, "--output", str(written)], check=True, capture_output=True)
    cells = nbformat.read(written, as_version=4).cells
    assert {cell.cell_type for cell in cells} == {"code", "markdown"}


def test_options_of_admonitions_are_names_of_classes() -> None:
    # MyST reads a text on the line of an option as names of classes, and does not show it.
    found = [
        line
        for page in sorted(DOCS.rglob("*.md"))
        for line in re.findall(r"^:class: *(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(found) > 50
    assert set(found) == {"dropdown"}
