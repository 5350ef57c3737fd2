"""The drawings of the course: readable on a narrow screen, without overlaps, true numbers."""

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = [
    *("beam-tree", "block", "bottleneck", "cache", "encoder-decoder", "heads", "masks", "patches"),
    *("qkv", "recurrent-attention"),
]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    import drawings

    yield drawings
    for name in [name for name in sys.modules if name.partition(".")[0] == "drawings"]:
        del sys.modules[name]


def boxes_of_texts(root: ElementTree.Element) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield text, left, top, right and bottom of each text, with the widths of a wide font."""
    for text in root.iter(f"{SVG}text"):
        if text.get("transform"):
            continue
        content = "".join(text.itertext())
        size, x, y = (float(text.get(name) or 0) for name in ("font-size", "x", "y"))
        width = 0.57 * size * len(content)
        left = (
            x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")] * width
        )
        yield content, left, y - 0.75 * size, left + width, y + 0.1 * size


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_large_and_inside_and_do_not_overlap(drawings: Any, name: str) -> None:
    root = ElementTree.fromstring(drawings.element(name, "a label"))
    assert root.get("aria-label") == "a label"
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    assert width <= 343  # the width of a page on a screen of 375 pixels
    sizes = [float(part.get("font-size") or 99) for part in root.iter()]
    assert min(sizes) >= 11
    boxes = list(boxes_of_texts(root))
    assert len(boxes) > 10
    for text, left, top, right, bottom in boxes:
        assert min(left, top) > -2, text
        assert right < width + 2, text
        assert bottom < height, text
    for i, (text, left, top, right, bottom) in enumerate(boxes):
        for other, left_2, top_2, right_2, bottom_2 in boxes[:i]:
            apart = right < left_2 or right_2 < left or bottom < top_2 or bottom_2 < top
            assert apart, (text, other)


def test_every_color_is_in_the_style(drawings: Any) -> None:
    style = drawings.STYLE.read_text(encoding="utf-8")
    for name in NAMES:
        for classes in re.findall(r' class="([^"]*)"', drawings.element(name, "")):
            for one in classes.split():
                assert f".{one} " in style, one
    colors = [
        set(re.findall(r"(--[\w-]+):", part))
        for part in re.findall(r"\{([^{}]*--ink:[^{}]*)\}", style)
    ]
    assert len(colors) == 3  # light, dark by the system, dark by the button of the page
    assert colors[0] == colors[1] == colors[2]
    assert "http" not in style


def test_the_list_is_complete(drawings: Any) -> None:
    assert sorted(drawings.DRAWINGS) == NAMES


def test_the_beam_search_finds_a_more_probable_text_than_greedy_search(drawings: Any) -> None:
    generation = drawings.generation

    def search(size: int) -> dict[Any, float]:
        kept = {(): 1.0}
        for _ in range(3):
            kept = generation.best(generation.extend(kept), size)
        return generation.best(kept, 1)

    assert search(1) == {("ein", "Tag", "end"): pytest.approx(0.5 * 0.35 * 0.6)}
    assert search(2) == {("der", "Tag", "end"): pytest.approx(0.4 * 0.9 * 0.7)}


def test_a_notebook_contains_the_drawing_as_an_image(drawings: Any) -> None:
    import drawing

    page = (
        "# Title\n\n```{drawing} masks\n:alt: Four masks\n\nThe caption, *in words*.\n```\n\nEnd.\n"
    )
    text = drawing.for_notebook(page)
    image, caption = re.findall(
        r"^!\[Four masks\]\(data:image/svg\+xml;base64,(\S+)\)\n\n(.+)$", text, re.M
    )[0]
    assert caption == "The caption, *in words*."
    assert text.startswith("# Title\n\n![")
    assert text.endswith("\n\nEnd.\n")
    assert "{drawing}" not in text
    root = ElementTree.fromstring(base64.b64decode(image))
    assert root.find(f"{SVG}style") is not None
