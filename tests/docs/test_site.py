"""The documentation site, built and read from files in a headless Chromium without a network."""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from fourfold import models
from scripts.tools.build_docs import ROOT, build, problems, spell

pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(3600)]
COURSE = sorted((ROOT / "docs" / "course").glob("[0-9][0-9]-*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site; a warning of the build is an error."""
    work = tmp_path_factory.mktemp("docs")
    build(work)
    return work / "html"


def test_links_resolve_and_nothing_is_requested_from_the_network(site: Path) -> None:
    assert (site / "docs" / "index.html").exists()
    assert not problems(site)


def test_spelling_is_right() -> None:
    spell()


def test_formulas_are_mathml(site: Path) -> None:
    pages = [file.read_text(encoding="utf-8") for file in (site / "docs").rglob("*.html")]
    assert any("<math" in page for page in pages)
    assert not [page for page in pages if re.search(r"<script[^>]*(mathjax|katex)", page, re.I)]


def test_the_notebook_of_each_page_of_the_course_can_be_downloaded(site: Path) -> None:
    for page in COURSE:
        name = f"{page.stem}.ipynb"
        notebook = nbformat.read(site / "docs" / "course" / name, as_version=4)
        nbformat.validate(notebook)
        assert any(cell.get("outputs") for cell in notebook.cells), "outputs of the build"
        html = (site / "docs" / "course" / f"{page.stem}.html").read_text(encoding="utf-8")
        assert f'href="{name}"' in html


def test_titles_are_unique(site: Path) -> None:
    files = [file for file in site.rglob("*.html") if "_modules" not in file.parts]  # source text
    # The first one; the others belong to icons.
    found = [re.search("<title>(.*?)</title>", file.read_text(encoding="utf-8")) for file in files]
    titles = Counter(title[1] for title in found if title)
    assert len(titles) > 100
    assert not [title for title, n in titles.items() if n > 1]


def test_each_model_class_has_a_forward_with_named_arguments(site: Path) -> None:
    page = (site / "docs" / "api" / "models.html").read_text(encoding="utf-8")
    classes = [getattr(models, name) for name in dir(models)]
    names = [
        model.__name__
        for model in classes
        if inspect.isclass(model) and issubclass(model, models.Model) and model is not models.Model
    ]
    assert len(names) > 20
    for name in names:
        entry = re.search(rf'id="fourfold.models.{name}.forward">(.*?)</dt>', page, re.S)
        assert entry, name
        first = re.sub(r"<[^>]+>|\s", "", entry[1]).partition("forward(")[2]
        assert re.match(r"(ids|src|images|image_ids|inputs|x)\b", first), (name, first)


def test_figures_have_a_dark_version(site: Path) -> None:
    page = (site / "docs" / "course" / "07-positions.html").read_text(encoding="utf-8")
    assert len(re.findall('class="only-light"', page)) > 3
    dark = re.findall(r'class="only-dark" [^>]*src="([^"]+)"', page)
    assert len(dark) == len(re.findall('class="only-light"', page))
    assert all((site / "docs" / "course" / source).exists() for source in dark)


@pytest.fixture
def visit(chromium: Any, site: Path) -> Iterator[Any]:
    """Return a function that opens a page of the site.

    At the end of a test: no page requested anything outside the site or wrote to the console.
    """
    context = chromium.new_context(offline=True)
    requests, messages = [], []

    def opened(page: str) -> Any:
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(f"{site.as_uri()}/{page}")
        return tab

    yield opened
    context.close()
    assert requests
    assert not [url for url in requests if not url.startswith((site.as_uri(), "data:"))]
    assert not messages


@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("causal mask", "docs/api/core.html"),
        ("sinusoidal positions", "docs/course/07-positions.html"),
        ("positional encoding", "docs/course/07-positions.html"),
    ],
)
def test_search_finds_words(visit: Any, site: Path, words: str, page: str) -> None:
    tab = visit(f"search.html?q={words.replace(' ', '+')}")
    tab.wait_for_selector("#search-results ul.search li a")
    found = tab.locator("#search-results ul.search li a").evaluate_all(
        "(all) => all.map((one) => one.href.split('#')[0].split('?')[0])"
    )
    assert (site / page).as_uri() in found
    summary = tab.locator("#search-results ul.search p.context").first
    summary.wait_for()
    assert any(word in summary.inner_text().lower() for word in words.split())


@pytest.mark.browser
def test_a_formula_is_drawn(visit: Any) -> None:
    tab = visit("docs/batch-invariance.html")
    boxes = [formula.bounding_box() for formula in tab.locator("math").all()]
    assert len(boxes) > 4
    assert all(box["width"] > 5 and box["height"] > 5 for box in boxes)
    fraction = tab.locator("math[display=block] mfrac").first.bounding_box()
    assert fraction["height"] > 30  # two lines


@pytest.mark.browser
def test_the_entry_opens_the_first_page_and_its_links_work(visit: Any) -> None:
    tab = visit("index.html")
    tab.wait_for_url("**/docs/index.html")
    tab.click("article a[href='conventions.html']")
    tab.wait_for_url("**/docs/conventions.html")
    assert tab.inner_text("h1").startswith("Conventions")


@pytest.mark.browser
def test_no_page_is_wider_than_a_phone(visit: Any, site: Path) -> None:
    tab = visit("docs/index.html")
    tab.set_viewport_size({"width": 375, "height": 800})
    wide = {}
    for file in sorted((site / "docs").rglob("*.html")):
        tab.goto(file.as_uri())
        if (width := tab.evaluate("document.documentElement.scrollWidth")) > 375:
            wide[file.name] = width
    assert not wide
