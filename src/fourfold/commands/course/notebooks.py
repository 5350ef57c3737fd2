"""Pages of the course as notebooks: conversion from MyST Markdown, and command `fourfold course`.

A checkout keeps the pages in docs/course. A wheel has the same tree in `fourfold/course`, with the
tables and configs that their cells read (pyproject.toml lists them). `make docs` stores executed
notebooks beside the pages, and a wheel that is built afterwards contains them.
"""

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fourfold import __version__
from fourfold.commands.option_parser import OptionParser
from fourfold.errors import InputError

PACKAGE = Path(__file__).resolve().parents[2]
ROOT = PACKAGE / "course" if (PACKAGE / "course").is_dir() else PACKAGE.parents[1]
COURSE = ROOT / "docs" / "course"
NOTEBOOK = "---\njupytext:\n"  # start of a page with cells
# A cell: options between lines of dashes, and code.
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?:---\n(.*?)^---\n)?(.*?)\n```[ ]*$", re.M | re.S)
ADMONITION = re.compile(r"^:{3,}\{\w+\}(.*)\n((?::\w.*\n)*)((?s:.*?))^:{3,}[ ]*$", re.M)
# Another directive, such as a drawing. Its content is a caption.
DIRECTIVE = re.compile(r"^```\{[\w-]+\}.*\n(?::\w.*\n)*\n*((?s:.*?))^```[ ]*$", re.M)
LINK = re.compile(r"\[([^]]*)\]\((?=[\w.#])(?:([\w./-]+)\.md)?(?:#[^)\s]*)?\)")
FILE = re.compile(r'"(course\.mplstyle|\.\./\.\./[^"]*)"')  # that a cell reads
INSTALLATION = f"""\
*A page of the course of fourfold {__version__}. The cells need the package and its built-in data:
`%pip install "./fourfold-{__version__}-py3-none-any.whl[demo]"` if the wheel is in this folder, or
`%pip install -e ".[demo]"` in a clone. On Colab, upload the wheel first; no page was run there.*"""
FIRST_CELL = (
    "from fourfold.commands.course.notebooks import COURSE  # folder with the style and the tables"
)


def course_pages() -> dict[str, str]:
    """Return the text of the pages that become notebooks, by their names."""
    texts = {file.stem: file.read_text("utf-8") for file in sorted(COURSE.glob("*.md"))}
    return {name: text for name, text in texts.items() if text.startswith(NOTEBOOK)}


def notebook(text: str) -> dict[str, Any]:
    """Convert a page to a notebook without outputs that can be executed in any folder.

    A link to a heading of the page, or to a file that is no notebook, becomes text, and an answer
    opens on a click.
    """
    pages = course_pages()

    def link(found: re.Match[str]) -> str:
        return f"[{found[1]}]({found[2]}.ipynb)" if found[2] in pages else found[1]

    def admonition(found: re.Match[str]) -> str:
        title, options, content = found[1].strip(), found[2], found[3].strip()
        if "dropdown" in options:
            return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"
        return f"> **{title}**\n\n{content}".replace("\n", "\n> ")

    def markdown(part: str) -> dict[str, Any]:
        part = DIRECTIVE.sub(r"\1", LINK.sub(link, ADMONITION.sub(admonition, part)))
        return {"cell_type": "markdown", "metadata": {}, "source": part.strip()}

    def code(source: str, options: str | None = None) -> dict[str, Any]:
        metadata = yaml.safe_load(options or "{}")
        if "hide-input" in metadata.get("tags", ()):
            metadata["jupyter"] = {"source_hidden": True}
        cell = {"cell_type": "code", "execution_count": None, "outputs": [], "metadata": metadata}
        return cell | {"source": FILE.sub(r'f"{COURSE}/\1"', source)}

    _, header, body = text.split("---\n", 2)
    # The first text, and then options, code and following text of each cell.
    first, *parts = CELL.split(body)
    cells = [markdown(INSTALLATION), code(FIRST_CELL), markdown(first)]
    for options, source, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        cells += [code(source, options), markdown(part)]
    cells = [{"id": f"cell-{i}", **cell} for i, cell in enumerate(cells) if cell["source"]]
    metadata = yaml.safe_load(header) | {"fourfold": {"crc32": zlib.crc32(text.encode())}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main(argv: Sequence[str]) -> int:
    """Write the pages of the course as notebooks, with outputs where `make docs` stored them.

    Args:
        argv: The folder, which must not contain a page of the course.
    """
    parser = OptionParser(prog="fourfold course", description="Write the course as notebooks.")
    parser.add_argument("folder", metavar="DIR", help="folder of the notebooks, which is created")
    folder, n_executed = Path(parser.parse_args(list(argv)).folder), 0
    notebooks = {f"{name}.ipynb": notebook(text) for name, text in course_pages().items()}
    if there := [name for name in notebooks if (folder / name).exists()]:
        raise InputError(f"contains {there[0]} already; name another folder", option="DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in notebooks.items():
        stored = COURSE / "notebooks" / name
        executed = json.loads(stored.read_text("utf-8")) if stored.exists() else {"metadata": {}}
        if executed["metadata"] == page["metadata"]:  # otherwise the page has changed since
            page, n_executed = executed, n_executed + 1
        (folder / name).write_text(json.dumps(page, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{folder}: {len(notebooks)} notebooks, {n_executed} of them with outputs")
    return 0
