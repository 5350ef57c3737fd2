"""Structure of the page of attention maps: no request, no markup in tokens, maps as Python sees."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fourfold.explorer.page import assemble, pack
from tests.fixtures.explorer_documents import (
    SAMPLES,
    causal_lm,
    document,
    heads,
    unpack,
    weights,
)

HOSTILE = [
    "</script>",
    "</SCRIPT ><img src=x onerror=alert(1)>",
    "<!--",
    "<script>",
    "]]>",
    '"',
    "'",
    "&lt;",
    "\u2028\u2029",
    "\u202eabc",
    "\u200b",
    "\ud800",
    "\0",
    "👩‍👩‍👧",
    "עברית",
    "{{meta}}",
    "{{script}}",
    "\\u003c/script>",
    "=1+1",
    "",
    " ",
    "\n",
]


class Page(HTMLParser):
    """Elements of a page as (tag, attributes), and the text of scripts and styles by id or tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inner: dict[str, str] = {}
        self.place: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.elements.append((tag, named))
        if tag in ("script", "style"):
            self.place = named.get("id") or tag
            assert self.place not in self.inner
            self.inner[self.place] = ""

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.place = None

    def handle_data(self, data):
        if self.place:
            self.inner[self.place] += data


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[str, Page]]:
    made = {name: assemble(*sample()[:2]) for name, sample in SAMPLES.items()}
    return {name: (text, Page(text)) for name, text in made.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_page_names_no_address_and_its_policy_admits_its_own_script_only(pages, name: str) -> None:
    text, page = pages[name]
    assert set(page.inner) == {"style", "script", "meta", "maps"}
    code = page.inner["script"] + page.inner["style"]
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"\b(fetch|import|eval|Function|XMLHttpRequest|innerHTML|outerHTML|"
        r"insertAdjacentHTML|document\.write)\b\s*[(=]|@import|url\(",
        code,
    )
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img"), tag
        assert not {"src", "href", "style", "action"} & set(attributes)
        assert not [key for key in attributes if key.startswith("on")]
    (policy,) = [a["content"] for tag, a in page.elements if a.get("http-equiv")]
    for kind in ("style", "script"):
        digest = hashlib.sha256(page.inner[kind].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")


@pytest.mark.parametrize("name", SAMPLES)
def test_maps_in_the_page_are_the_weights(pages, name: str) -> None:
    source, _, arrays = SAMPLES[name]()
    page = pages[name][1]
    found = json.loads(page.inner["meta"])
    assert found == source
    data = zlib.decompress(base64.b64decode(page.inner["maps"]))
    entries = [entry for row in found["rows"] for entry in row["maps"]]
    assert len(entries) == len(arrays)
    for entry, array in zip(entries, arrays, strict=True):
        shown = unpack(entry, data, found["precision"])
        width = np.ptp(entry.get("range", [0, 1]))
        assert np.abs(shown - array).max() <= width * (0.004 if found["precision"] == 8 else 5e-4)
        if "range" not in entry:
            np.testing.assert_allclose(shown.sum(-1), 1, atol=0.02)


def test_half_the_cells_of_a_causal_map_are_stored() -> None:
    array = weights(7, 7, 0, causal=True)
    assert [len(pack(array, triangle)) for triangle in (True, False)] == [28, 49]


def test_error_of_the_quantisation_is_small_everywhere() -> None:
    values = np.linspace(0, 1, 10_001)[None]
    shown = unpack({"shape": [1, 10_001], "offset": 0}, pack(values))
    assert np.abs(shown - values).max() <= 0.00394
    assert np.abs(shown - values)[values < 4e-6].max() <= 4e-6


def hostile_page(lists: list[list[str]], title: str) -> list[str]:
    """Tags of a page with one input for each token list; the lists come back as they were."""
    rows = [
        (
            {"tokens": {"tokens": tokens}, "title": tokens[0]},
            heads("self", len(tokens), len(tokens), 1, 1),
        )
        for tokens in lists
    ]
    source, data, _ = document("masked_lm", rows, title=title)
    text = assemble(source, data)
    text.encode()  # writes as UTF-8
    page = Page(text)
    found = json.loads(page.inner["meta"])
    assert [row["tokens"]["tokens"] for row in found["rows"]] == lists
    assert not re.search(r"[\u2028\u2029\x00]", text)
    return [tag for tag, _ in page.elements]


def test_hostile_tokens_stay_text() -> None:
    plain = hostile_page([["a"] * len(HOSTILE)], "b")
    assert hostile_page([HOSTILE], "<b>{{maps}}</title>") == plain


def test_a_thousand_random_token_lists_stay_text() -> None:
    random = np.random.default_rng(0)
    pieces = [
        *"<>&\"'/!-{}\\ab =\n\t\r\0",
        "\u2028",
        "\ud834",
        "א",
        "script",
        "</title>",
        "noscript",
    ]
    lists = [
        ["".join(random.choice(pieces, random.integers(0, 9))) for _ in range(4)]
        for _ in range(1000)
    ]
    plain = hostile_page([["a"] * 4] * 100, "b")
    for i in range(0, 1000, 100):
        assert hostile_page(lists[i : i + 100], lists[i][0]) == plain


def test_same_document_gives_same_bytes_of_a_bounded_size() -> None:
    source, data, _ = causal_lm(length=128, layers=4, count=4)
    text = assemble(source, data)
    assert text == assemble(*causal_lm(length=128, layers=4, count=4)[:2])
    cells = 21 * 128 * 129 // 2
    assert len(text.encode()) < 1.4 * cells + 135_000


def test_code_of_the_page_is_small(pages) -> None:
    lengths = {name: len(resource(name).splitlines()) for name in ("look.js", "pure.js")}
    assert lengths["look.js"] < 1075
    assert lengths["pure.js"] < 200
    assert len(resource("look.css").encode()) < 8192
    assert len(pages["vit"][1].inner["script"].encode()) < 68_000


def test_script_of_the_page_ends_at_its_end(pages) -> None:
    script = pages["translation"][1].inner["script"]
    assert script == resource("pure.js") + resource("look.js").removeprefix('"use strict";\n')
    assert not re.search(r"<!--|-->|</script", script)


def resource(name: str) -> str:
    return files("fourfold.explorer").joinpath(name).read_text(encoding="utf-8")


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


@needs_node
@pytest.mark.parametrize("name", ["look.js", "pure.js"])
def test_script_parses(name: str) -> None:
    file = str(files("fourfold.explorer").joinpath(name))
    assert subprocess.run(["node", "--check", file], capture_output=True).returncode == 0


@needs_node
def test_pure_functions_of_the_page(root: Path, tmp_path: Path) -> None:
    """The functions of pure.js agree with Python on maps that `pack` made."""
    array = weights(5, 5, 0, causal=True)
    packed = {
        precision: (pack(array, True, precision) + pack(array, False, precision), [0, 15])
        for precision in (8, 16)
    }
    cases = {
        str(precision): {
            "bytes": base64.b64encode(zlib.compress(data)).decode(),
            "offsets": offsets,
            "weights": unpack({"shape": [5, 5], "offset": offsets[1]}, data, precision).tolist(),
        }
        for precision, (data, offsets) in packed.items()
    }
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    result = subprocess.run(
        ["node", "--test", str(root / "tests" / "explorer" / "pure.test.cjs")],
        env={
            "CASES": str(tmp_path / "cases.json"),
            "PURE": str(files("fourfold.explorer") / "pure.js"),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
