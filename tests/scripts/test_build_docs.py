"""The check of links, resources and images of the documentation site."""

from pathlib import Path

import pytest

from scripts.tools.build_docs import problems, store_notebooks


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<a href="no.html">x</a>', "no.html does not exist"),
        ('<a href="other.html#no">x</a>', "other.html#no has no such anchor"),
        ('<a href="#no">x</a>', "#no has no such anchor"),
        ('<script src="https://a.org/x.js"></script>', "is requested from the network"),
        ('<link rel="stylesheet" href="//a.org/x.css">', "is requested from the network"),
        ('<img src="x.png" alt="x.png">', "the image x.png has no text"),
    ],
)
def test_a_problem_is_found(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "page.html").write_text(body)
    (tmp_path / "other.html").write_text('<p id="here">')
    (tmp_path / "x.png").touch()
    (found,) = problems(tmp_path)
    assert found.startswith("page.html: ")
    assert message in found


def test_a_style_may_not_request_anything_from_the_network(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@font-face { src: url('https://a.org/font.woff2') }")
    assert problems(tmp_path) == [
        "style.css: https://a.org/font.woff2 is requested from the network"
    ]


def test_a_right_page_has_no_problem(tmp_path: Path) -> None:
    right = (
        '<a href="sub/other.html#here">a</a> <a href="https://a.org">b</a> <a href="#top">c</a>'
        '<h1 id="top">d</h1> <img src="x.png" alt="a plot"> <img src="data:image/png;x" alt="e">'
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "page.html").write_text(right)
    (tmp_path / "sub" / "other.html").write_text('<p id="here"><a href="../page.html">back</a>')
    (tmp_path / "x.png").touch()
    assert problems(tmp_path) == []


def test_the_notebooks_of_the_last_build_alone_are_stored(tmp_path: Path) -> None:
    pages, folder = tmp_path / "site" / "docs" / "course", tmp_path / "notebooks"
    pages.mkdir(parents=True)
    folder.mkdir()
    (folder / "gone.ipynb").touch()
    (pages / "01-page.ipynb").write_text("{}")
    (pages / "01-page.html").touch()
    store_notebooks(tmp_path / "site", folder)
    assert [file.name for file in folder.iterdir()] == ["01-page.ipynb"]
