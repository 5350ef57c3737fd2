"""Extensions of the documentation site, on formulas, figures and a small site of three pages."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from docutils import nodes
from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "docs" / "_extensions"
START = """# Start

Probabilities $\\log p(x)$ and

$$\\operatorname{softmax}\\left(\\frac{Q K^\\top}{\\sqrt{D_k}}\\right) V$$

```python
words = "LINE"
```

```pycon
>>> for i in range(2):
...     print(i)
0
1
```

```sh
make docs
```

```text
OUTPUT
```

```{toctree}
api
course/coverage
course/07-positions
```
""".replace("LINE", "word " * 40).replace("OUTPUT", "column " * 40)
API = """API
===

.. currentmodule:: fourfold.models
.. autoclass:: Model
.. autoclass:: CausalLM
.. autoclass:: CausalLMConfig
.. autoclass:: ViTConfig
.. autoclass:: SegmenterConfig

.. currentmodule:: fourfold.generation.minimal_pairs
.. autofunction:: answer

.. currentmodule:: fourfold.tasks
.. autoclass:: ImageClassification
"""
COVERAGE = """# Coverage

| heading | page | test |
| --- | --- | --- |
| Positional encoding | [5 Order](coverage.md#coverage), [7 Waves](07-positions.md#waves) | `x.py` |
| 2.4 Positional encoding | [7 Waves](07-positions.md#waves) | `x.py` |
"""
POSITIONS = "# Order\n\n## Waves\n\n```python\npositional = 1\n```\n\nSines of many wavelengths.\n"


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    return importlib.import_module


@pytest.mark.parametrize(
    ("formula", "elements"),
    [
        (r"\log p", "log _ p"),
        (r"a \log b", "a _ log _ b"),
        (r"\log(x)", "log ( x )"),
        (r"p(x) \log q", "p ( x ) _ log _ q"),
        (r"- \log p", "− log _ p"),
        (r"\operatorname{softmax} x", "softmax _ x"),
        (r"\operatorname{softmax}\left(x\right)", "softmax ( x )"),
        (r"\arg\max_i x", "arg _ max i _ x"),
        (r"\frac{\log x}{y}", "log _ x y"),
        (r"x y", "x y"),
    ],
)
def test_a_function_name_has_a_space_beside_it_as_in_tex(
    extension: Any, formula: str, elements: str
) -> None:
    converted = extension("mathml").to_mathml(nodes.math(text=formula), "inline")
    spaced = re.sub(r'<mspace width="0.1667em" ?/>', " _ ", converted)
    assert re.sub("<[^>]+>", " ", spaced).split() == elements.split()


def picture(figure: Figure, **options: Any) -> Image.Image:
    return Image.open(BytesIO(print_figure(figure, **options))).convert("RGB")


def test_a_dark_figure_exchanges_grey_and_keeps_colors_and_heat_maps(
    extension: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark_figures = extension("dark_figures")
    monkeypatch.setenv(dark_figures.FOLDER, str(tmp_path))
    with matplotlib.rc_context({"figure.constrained_layout.use": False}):
        figure = Figure(figsize=(4, 2))
        plot, heat_map = figure.subplots(1, 2)
        (line,) = plot.plot([0, 1], [0.5, 0.5], color="black", linewidth=20, marker="o")
        colored = plot.axhspan(0, 0.1, color="C1")
        heat_map.imshow([[0, 1]], cmap="Greys")
        (drawn,) = heat_map.plot([-0.5, 0.5], [-0.3, -0.3], color="black", linewidth=10)
        options: dict[str, Any] = {"bbox_inches": None}
        light = dark_figures.print_both(print_figure, figure, **options)
        (file,) = tmp_path.iterdir()
        before, after = Image.open(BytesIO(light)).convert("RGB"), Image.open(file).convert("RGB")
        assert before.size == after.size
        assert before.getpixel((0, 0)) == (255, 255, 255)
        assert max(after.getpixel((0, 0))) < 40
        middle = plot.transData.transform((0.5, 0.5)) * (1, -1) + (0, before.height)
        band = plot.transData.transform((0.5, 0.05)) * (1, -1) + (0, before.height)
        cells = heat_map.transData.transform([(0, -0.3), (0, 0.3), (1, 0)]) * (1, -1) + (
            0,
            before.height,
        )
        at = [tuple(map(int, place)) for place in (middle, band, *cells)]
        assert before.getpixel(at[0]) == (0, 0, 0)
        assert min(after.getpixel(at[0])) > 200
        for place in at[1:]:
            assert before.getpixel(place) == after.getpixel(place)
        assert line.get_color() == drawn.get_color() == "black"
        assert picture(figure, **options).tobytes() == before.tobytes()
        assert colored.get_facecolor()[:3] != (0, 0, 0)


def test_a_page_shows_the_dark_version_of_a_figure_beside_the_light_one(
    extension: Any, tmp_path: Path
) -> None:
    digest, other = "a" * 64, "b" * 64
    (tmp_path / "dark").mkdir()
    (tmp_path / "dark" / f"{digest}.png").write_bytes(b"dark")
    app = SimpleNamespace(
        config=SimpleNamespace(dark_figures=str(tmp_path / "dark")),
        outdir=tmp_path / "html",
        builder=SimpleNamespace(imagedir="_images"),
    )
    image = '<img alt="A plot" src="../_images/{}.png" />'
    context = {"body": f"{image.format(digest)}<p>{image.format(other)}"}
    extension("figures").add_dark_versions(app, "page", "", context, None)
    light, dark, alone = re.findall("<img[^>]*>", context["body"])
    assert 'class="only-light"' in light
    assert f"{digest}.png" in light
    assert 'class="only-dark"' in dark
    assert f"{digest}-dark.png" in dark
    assert 'alt="A plot"' in dark
    assert "only" not in alone
    assert (tmp_path / "html" / "_images" / f"{digest}-dark.png").read_bytes() == b"dark"


def test_the_notebook_of_a_page_has_the_outputs_of_the_build(
    extension: Any, tmp_path: Path
) -> None:
    header = "---\njupytext:\n  x: 1\nkernelspec: {}\n---\n"
    page = tmp_path / "01-page.md"
    page.write_text(f"{header}# Page\n\n```{{code-cell}} ipython3\n1 + 1\n```\n")
    executed = tmp_path / "jupyter_execute" / "docs" / "01-page.ipynb"
    executed.parent.mkdir(parents=True)
    output = {"output_type": "stream", "name": "stdout", "text": "2"}
    cell = {"cell_type": "code", "source": "1 + 1", "outputs": [output], "execution_count": 1}
    executed.write_text(json.dumps({"cells": [cell]}))
    app = SimpleNamespace(
        env=SimpleNamespace(doc2path=lambda name: page), outdir=str(tmp_path / "html")
    )
    context = {"body": "text"}
    extension("pages").offer_notebook(app, "docs/01-page", "", context, object())
    notebook = json.loads((tmp_path / "html" / "docs" / "01-page.ipynb").read_text())
    first, second = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (first["outputs"], second["outputs"]) == ([], [output])
    assert 'href="01-page.ipynb"' in context["body"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small site with the configuration of ours, without executed cells."""
    folder = tmp_path_factory.mktemp("small")
    source = folder / "source" / "docs"
    (source / "course").mkdir(parents=True)
    (source / "index.md").write_text(START)
    (source / "api.rst").write_text(API)
    (source / "course" / "coverage.md").write_text(COVERAGE)
    (source / "course" / "07-positions.md").write_text(POSITIONS)
    options = ["--fail-on-warning", "--quiet", "-D", "nb_execution_mode=off"]
    places = ["-c", "docs", "-d", str(folder / "doctrees"), str(folder / "source")]
    command = [sys.executable, "-m", "sphinx", *options, *places, str(folder / "html")]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder / "html"


def entry(site: Path, name: str) -> tuple[str, str]:
    """Return the signature of an entry of the API as text, and the HTML of its description."""
    page = (site / "docs" / "api.html").read_text(encoding="utf-8")
    found = re.search(
        rf'<dt class="sig[^>]*id="{re.escape(name)}">(.*?)</dt>\s*<dd>(.*)', page, re.S
    )
    assert found, name
    signature = re.sub(r"\s+", " ", unescape(re.sub("<[^>]+>", "", found[1])))
    return signature, found[2]


def test_the_api_reference_is_short_and_linked(site: Path) -> None:
    forward, _ = entry(site, "fourfold.models.CausalLM.forward")
    assert "ids: Tensor, *, mask: Tensor | None = None" in forward
    config, text = entry(site, "fourfold.models.SegmenterConfig")
    assert "head_norm: Literal['batch', 'none'] = 'batch', **fields" in config
    assert len(config) < 120
    assert re.search(r'are those of <a [^>]*href="#fourfold.models.ViTConfig"', text)
    task, _ = entry(site, "fourfold.tasks.ImageClassification")
    assert "config: ViTConfig = ViTConfig(...)" in task
    _, answer = entry(site, "fourfold.generation.minimal_pairs.answer")
    assert "(2, N): the score of each correct sentence or word; and its difference" in answer
    assert "Return type" not in answer.partition("fourfold.tasks")[0]
    _, model = entry(site, "fourfold.models.Model")
    assert re.search(r'<a [^>]*href="#fourfold.models.Model.hidden"[^>]*><code', model)


def test_the_font_of_formulas_has_a_table_of_mathematics(site: Path) -> None:
    from fontTools.ttLib import TTFont

    font = TTFont(site / "_static" / "STIXTwoMath.woff")
    assert "MATH" in font
    assert "SIL Open Font License" in font["name"].getDebugName(13)
    assert {ord("𝑥"), ord("∑"), ord("√"), ord("α")} <= font.getBestCmap().keys()
    assert (site / "_static" / "STIXTwoMath.woff").stat().st_size < 400_000


@pytest.fixture
def visit(chromium: Any, site: Path) -> Iterator[Any]:
    """Return a function that opens a page of the small site in a window of a given width."""
    contexts, messages = [], []

    def opened(page: str, width: int = 1280) -> Any:
        context = chromium.new_context(offline=True, viewport={"width": width, "height": 800})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(f"{site.as_uri()}/{page}")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not messages


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 375])
def test_code_wraps_and_output_scrolls(visit: Any, width: int) -> None:
    tab = visit("docs/index.html", width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    sizes = "(pre) => [pre.scrollWidth <= pre.clientWidth, pre.clientHeight]"
    fits, height = tab.locator(".highlight-python pre").evaluate(sizes)
    assert fits
    assert height > 50  # two lines
    assert not tab.locator(".highlight-text pre").evaluate(sizes)[0]
    api = visit("docs/api.html", width)
    assert api.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
def test_the_font_of_formulas_is_used(visit: Any) -> None:
    tab = visit("docs/index.html")
    tab.evaluate("document.fonts.ready")
    fonts = tab.evaluate("[...document.fonts].map((font) => `${font.family}: ${font.status}`)")
    assert "STIX Two Math: loaded" in [font.replace('"', "") for font in fonts]
    bracket = tab.locator("math[display=block] mo", has_text="(").bounding_box()
    fraction = tab.locator("math[display=block] mfrac").bounding_box()
    assert bracket["height"] > 0.8 * fraction["height"]


@pytest.mark.browser
def test_the_button_copies_code_without_prompts(visit: Any) -> None:
    tab = visit("docs/index.html")
    for kind, text in (
        ("python", f'words = "{"word " * 40}"'),
        ("pycon", "for i in range(2):\n    print(i)"),
        ("sh", "make docs"),
    ):
        button = tab.locator(f".highlight-{kind} button.copy")
        button.hover()
        button.click()
        tab.wait_for_function(
            "(button) => button.textContent === 'Copied'", arg=button.element_handle()
        )
        assert tab.evaluate("navigator.clipboard.readText()") == text


@pytest.mark.browser
def test_the_search_knows_the_headings_of_the_lectures_and_shows_summaries(visit: Any) -> None:
    tab = visit("search.html?q=positional+encoding")
    first = tab.locator("#search-results ul.search li").first
    first.locator("p.context").wait_for()
    assert first.locator("a").get_attribute("href").endswith("course/07-positions.html#waves")
    assert "Sines of many wavelengths" in first.locator("p.context").inner_text()
