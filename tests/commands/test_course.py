"""`fourfold course`: the pages of the course as notebooks that run in an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from fourfold.cli import main
from fourfold.commands.course import notebooks as course
from tests.docs.test_structure import HEADER

PAGES = course.course_pages()
PAGE = (
    HEADER
    + """
# Title

See [page 6](06-scaling-heads-masks.md#heads), [a table](../../results/x.md) and
[a paper](https://a.org/x.md).

```{drawing} heads
:alt: Three heads

The caption of the drawing.
```

```{code-cell} ipython3
---
tags: [hide-input]
---
plt.style.use("course.mplstyle")
table = Path("../../results/x.csv")
```

:::{admonition} Predict
What is $1 + 1$?

Say why.
:::

:::{admonition} Answer
:class: dropdown
It is 2.
:::

```{code-cell} ipython3
1 + 1
```
"""
)


def cells(notebook: dict[str, Any], kind: str) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_a_page_is_converted_as_meant() -> None:
    notebook = course.notebook(PAGE)
    nbformat.validate(notebook)
    install, text, exercises = (cell["source"] for cell in cells(notebook, "markdown"))
    first, options, last = cells(notebook, "code")
    assert "pip install" in install
    assert first["source"].startswith("from fourfold.commands.course.notebooks import COURSE")
    assert text == (
        "# Title\n\nSee [page 6](06-scaling-heads-masks.ipynb), a table and\n"
        "[a paper](https://a.org/x.md).\n\nThe caption of the drawing."
    )
    assert options["metadata"]["jupyter"] == {"source_hidden": True}
    assert options["source"].splitlines() == [
        'plt.style.use(f"{COURSE}/course.mplstyle")',
        'table = Path(f"{COURSE}/../../results/x.csv")',
    ]
    assert exercises == (
        "> **Predict**\n> \n> What is $1 + 1$?\n> \n> Say why.\n\n"
        "<details>\n<summary>Answer</summary>\n\nIt is 2.\n\n</details>"
    )
    assert last["source"] == "1 + 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all pages of the course as notebooks."""
    folder = tmp_path_factory.mktemp("course") / "new" / "folder"
    assert main(["course", str(folder)]) == 0
    return folder


def test_every_page_of_the_course_becomes_a_notebook(folder: Path) -> None:
    files = sorted(folder.glob("*.ipynb"))
    assert [file.stem for file in files] == sorted(PAGES)
    assert len(files) > 15
    for file in files:
        notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        expected = jupytext.reads(PAGES[file.stem], fmt="md:myst")
        sources = [cell.source for cell in cells(expected, "code")]
        found = [cell.source.replace("{COURSE}/", "") for cell in cells(notebook, "code")[1:]]
        assert [re.sub(r'\bf"(course\.|\.\./)', r'"\1', source) for source in found] == sources
        text = "\n".join(cell.source for cell in cells(notebook, "markdown"))
        assert not re.search(r"^(:::|```\{)", text, re.MULTILINE), file
        assert text.count("<details>") == PAGES[file.stem].count(":class: dropdown")
        links = re.findall(r"\]\(([^):]+)\)", re.sub("`[^`]*`", "", text))
        assert not [link for link in links if not (folder / link).exists()]


def test_a_notebook_of_the_reader_is_not_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert main(["course", str(folder)]) == 2
    assert "contains 00-index.ipynb already" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_stored_outputs_are_those_of_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(course, "COURSE", tmp_path / "pages")
    stored = tmp_path / "pages" / "notebooks"
    stored.mkdir(parents=True)
    for name, text in (("01-same", PAGE), ("02-changed", PAGE)):
        (tmp_path / "pages" / f"{name}.md").write_text(text)
        executed = course.notebook(text)
        output = {"output_type": "stream", "name": "stdout", "text": "2\n"}
        cells(executed, "code")[-1]["outputs"] = [output]
        (stored / f"{name}.ipynb").write_text(json.dumps(executed))
    (tmp_path / "pages" / "02-changed.md").write_text(PAGE.replace("1 + 1", "1 + 2"))
    assert main(["course", str(tmp_path / "out")]) == 0
    assert "2 notebooks, 1 of them with outputs" in capsys.readouterr().out
    for name, n_outputs in (("01-same", 1), ("02-changed", 0)):
        notebook = nbformat.read(tmp_path / "out" / f"{name}.ipynb", as_version=4)
        assert len(cells(notebook, "code")[-1].outputs) == n_outputs


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600).execute()
import fourfold
print(fourfold.__file__)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_notebook_runs_in_an_empty_folder_with_the_files_of_the_wheel(
    root: Path, tmp_path: Path
) -> None:
    # The page reads the style and a table of results.
    page = "09-encoder-decoder-transformer"
    assert "../../results/" in PAGES[page]
    wheel, empty = tmp_path / "wheel", tmp_path / "empty"
    project = tomllib.loads((root / "pyproject.toml").read_text())
    options = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    shutil.copytree(root / options["packages"][0], wheel / "fourfold")
    for source, target in options["force-include"].items():
        (wheel / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (root / source).is_dir() else shutil.copy
        copy(root / source, wheel / target)
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(wheel), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fourfold", "course", str(empty)]
    subprocess.run(command, cwd=empty, env=env, check=True)
    command = [sys.executable, "-c", EXECUTE, str(empty / f"{page}.ipynb")]
    result = subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.startswith(str(wheel))
