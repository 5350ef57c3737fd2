"""The page of attention maps in a headless Chromium, opened from a file without a network."""

import base64
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fourfold.explorer.document import join_documents
from fourfold.explorer.page import assemble
from tests.explorer.test_page import HOSTILE
from tests.fixtures.explorer_documents import SAMPLES, causal_lm, document, heads, unpack

pytestmark = pytest.mark.browser


@pytest.fixture
def visit(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that writes a page, opens it and waits until it is drawn.

    At the end of a test: the page requested nothing, wrote nothing to the console and shows no
    error.
    """
    open_pages, seen = [], []

    def opened(made: tuple[Any, ...], place: str = "", **options: Any) -> Any:
        file = tmp_path / f"look{len(open_pages)}.html"
        file.write_text(assemble(*made[:2]), encoding="utf-8")
        context = chromium.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "offline": True, **options}
        )
        page = context.new_page()
        page.on("request", lambda request: seen.append(request.url.split("#")[0]))
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.goto(f"{file.as_uri()}{place}")
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready], #error:visible", state="attached")
            assert page.text_content("#error") == ""
        open_pages.append((page, file.as_uri()))
        return page

    yield opened
    for page, _ in open_pages:
        page.context.close()
    # An image of the page itself is a data: address.
    assert [url for url in seen if not url.startswith("data:image/")] == [u for _, u in open_pages]


def shown(made: tuple[Any, ...], **place: Any) -> np.ndarray:
    """Weights of the stored map at a place of the first input."""
    source, data, _ = made
    (entry,) = [e for e in source["rows"][0]["maps"] if place.items() <= e.items()]
    return unpack(entry, data, source["precision"])


def live(page: Any) -> str:
    return page.text_content("#live").replace("−", "-")


def value(page: Any) -> float:
    """Return the number in the live region."""
    return float(live(page).split("’: ")[1].split(" (")[0].removeprefix("< "))


def cells(page: Any) -> np.ndarray:
    """Return the pixels (H, W, 3) of the cells of the map, without the labels around them."""
    place, url = page.evaluate("""() => {
        const { left, top, size, r, c } = page.matrix;
        const box = [left, top, left + size * (c[1] - c[0]), top + size * (r[1] - r[0])];
        return [box, document.getElementById("matrix").toDataURL()];
    }""")
    image = Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))
    return np.asarray(image.convert("RGB").crop(place), np.float32)


@pytest.mark.parametrize(
    "name",
    ["translation"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in SAMPLES if name != "translation"],
)
def test_page_is_accessible_and_fits_a_phone(visit, check_accessible: Any, name: str) -> None:
    check_accessible(visit(SAMPLES[name](), color_scheme="light"))


def test_keyboard_walk_says_the_weights(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=0&head=0&q=1")
    tokens = made[0]["rows"][0]["tokens"]

    def check(layer: int, head: int, t: int, s: int) -> None:
        weights = shown(made, name="cross", layer=layer, head=head)
        start = f"‘{tokens['target'][t]}’ attends to ‘{tokens['source'][s]}’: "
        assert live(page).startswith(start)
        assert value(page) == pytest.approx(weights[t, s], rel=0.06, abs=1e-4)

    best = shown(made, name="cross", layer=0, head=0).argmax(-1)
    check(0, 0, 1, best[1])
    page.focus("#matrix")
    page.keyboard.press("ArrowDown")
    assert "q=2" in page.url
    check(0, 0, 2, best[2])
    step = -1 if best[2] else 1
    page.keyboard.press("ArrowLeft" if best[2] else "ArrowRight")
    assert f"k={best[2] + step}" in page.url
    check(0, 0, 2, best[2] + step)
    page.keyboard.press("ArrowUp")
    check(0, 0, 1, best[2] + step)
    page.keyboard.press("]")
    page.keyboard.press(".")
    check(1, 1, 1, best[2] + step)
    assert (page.input_value("#layer"), page.input_value("#head")) == ("1", "1")
    page.keyboard.press("?")
    assert page.is_visible("#help")


def test_address_shows_the_same_to_another_reader(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made)
    page.select_option("#map", "encoder")
    page.select_option("#layer", "0")
    page.select_option("#head", "1")
    page.click("#lines text:text-is('am')")
    other = visit(made, "#" + page.url.split("#")[1])
    assert "self-attention of the encoder, layer 0, head 1" in live_place(other).lower()
    assert live(other) == live(page)
    assert live(page).startswith("‘am’ attends to")


def live_place(page: Any) -> str:
    return page.text_content("#explain")


def test_words_take_the_sum_over_keys_and_special_tokens_can_be_hidden(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=0&head=0&q=1&k=3&words=1")
    weights = shown(made, name="cross", layer=0, head=0)
    assert live(page).startswith("‘house’ attends to ‘Meer’")
    assert value(page) == pytest.approx(weights[1, 3] + weights[1, 4], rel=0.06)
    assert page.locator("#beams li").all_inner_texts()[1] == "a house on the sea (−2.25)"
    uniform = page.locator("#top tbody tr td:nth-child(5)").all_inner_texts()
    assert set(uniform) == {"0.167", "0.333"}  # 1/6 for a piece, 2/6 for a word of two pieces
    assert "uniform attention: 0.333" in live(page)
    assert "3–4" in page.locator("#top tbody tr td:nth-child(3)").all_inner_texts()
    assert "over single tokens" in page.inner_text("#explain")
    page.check("#special")
    assert "</s>" not in page.text_content("#lines") + page.text_content("#text")


def test_pixels_of_the_map_and_the_table_are_the_weights(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=1&head=0&q=5&marks=0&map=decoder")
    weights = shown(made, name="decoder", layer=1, head=0)
    found = page.evaluate("""() => {
        const canvas = document.getElementById("matrix"), pen = canvas.getContext("2d");
        const { left, top, size } = page.matrix, ratio = canvas.width / canvas.clientWidth;
        const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
        const at = (start, i) => Math.round((start + (i + 0.5) * size) * ratio);
        const start = (t, s) => 4 * (at(top, t) * canvas.width + at(left, s));
        const pixel = (t, s) => [...data.slice(start(t, s), start(t, s) + 3)];
        const cells = [0, 1, 2, 3, 4];
        return cells.map((t) => cells.map((s) => [pixel(t, s),
            ramp(Math.sqrt(page.view.data[6 * t + s] / page.view.most))]));
    }""")
    for line in found:
        for colour, expected in line:
            np.testing.assert_allclose(colour, expected, atol=2)
    assert found[0][0][0] != found[0][4][0]
    view = page.evaluate("[...page.view.data]")
    np.testing.assert_allclose(np.reshape(view, (6, 6)), weights, atol=1e-6)
    shares = page.evaluate("[1, 2, 3, 4, 5].map((t) => entropyShare(page.view, t))")
    entropies = -np.sum(weights * np.log(np.maximum(weights, 1e-30)), -1)
    np.testing.assert_allclose(shares, entropies[1:] / np.log(np.arange(2, 7)), atol=1e-5)
    table = page.locator("#top tbody tr").all_inner_texts()
    best = np.argsort(-weights[5], kind="stable")
    assert [line.split()[2] for line in table] == [str(s) for s in best]
    assert float(table[0].split()[3]) == pytest.approx(weights[5].max(), rel=0.06)


def test_mean_of_heads_and_difference_of_two_models(visit) -> None:
    made = SAMPLES["compare"]()
    page = visit(made, "#layer=0&model=2&q=0&k=1")
    means = [shown(made, layer=0, head=None, model=model) for model in (0, 1)]
    view = page.evaluate("[...page.view.data]")
    np.testing.assert_allclose(np.reshape(view, (5, 5)), means[0] - means[1], atol=1e-6)
    assert live(page).startswith("‘a’ attends to ‘b’: difference ")
    assert "other.ckpt" in page.inner_text("#model")


def test_page_of_several_models_shows_each_family(visit) -> None:
    parts = []
    for name in ("causal_lm", "vit"):
        source, data, _ = SAMPLES[name]()
        source["provenance"] = {**source["provenance"], "checkpoint": f"{name}/last.ckpt"}
        source["precision"] = 8
        parts.append((source, data))
    page = visit(join_documents(parts))
    assert "from causal_lm/last.ckpt" in page.text_content("#subtitle")
    assert page.is_visible("#p-steps")
    assert not page.is_visible("#p-image")
    page.select_option("#row", label=page.locator("#row option").last.text_content())
    assert "from vit/last.ckpt" in page.text_content("#subtitle")
    assert page.is_visible("#p-image")
    assert not page.is_visible("#p-steps")
    assert "#row=" in page.url


def test_slider_of_a_generation_shows_alternatives_and_the_least_sure_step(visit) -> None:
    made = SAMPLES["causal_lm"]()
    steps = made[0]["rows"][0]["steps"]
    page = visit(made)
    page.locator("#step").fill("3")
    assert "step=2" in page.url
    assert f"q={steps[2]['query']}" in page.url
    assert page.locator("#alternatives li").all_inner_texts()[1].split() == ["␣dog", "0.25"]
    worst = int(np.argmax([step["entropy"] for step in steps]))
    assert f"Least sure: step {worst + 1} " in page.inner_text("#step-text")
    assert "Ranks: 501, 3, 1." in page.inner_text("#lens")
    page.locator("#play").click()
    page.wait_for_selector("#step[aria-valuetext^='4 of 4']")
    page.wait_for_selector("#play:text-is('Play')")


def test_word_and_step_are_one_choice(visit) -> None:
    page = visit(SAMPLES["translation"]())
    page.click("#text span:text-is('the')")
    assert page.get_attribute("#step", "aria-valuetext") == "4 of 6: the"
    page.click("#entropies rect.hit >> nth=1")
    assert live(page).startswith("‘house’ attends to")
    page.select_option("#map", "encoder")
    page.click("#text span:text-is('am')")  # a source token, to which no step belongs
    assert page.get_attribute("#step", "aria-valuetext") == "2 of 6: house"
    page.locator("#step").fill("5")
    assert live(page).startswith("‘am’ attends to")
    page.select_option("#map", "cross")
    assert live(page).startswith("‘sea’ attends to")


def test_rows_of_the_decoder_name_the_token_read_and_the_token_predicted(visit) -> None:
    page = visit(SAMPLES["translation"](), "#map=decoder&layer=1&head=1&q=2")
    assert live(page).startswith("‘house → by’ attends to ‘a’: ")
    assert "previous is the token before a" in page.inner_text("#matrix-hint")
    assert {"<s> → a", "house → by"} <= set(page.locator("#lines text").all_text_contents())


def test_patterns_name_the_nearest_head_if_no_head_follows_them(visit) -> None:
    made = SAMPLES["masked_lm"]()
    for entry in made[0]["rows"][0]["maps"]:
        is_first = (entry["layer"], entry["head"]) == (0, 0)
        entry["stats"] |= {"previous": [0.6 if is_first else 0.1, 0.125]}
        entry["stats"] |= {"next": [0.5 if is_first else 0.1, 0.125], "distance": [2, 2.5]}
    rows = visit(made).locator("#summary tbody tr").all_inner_texts()
    heads = dict(row.split("\t")[:2] for row in rows)
    assert heads["attends to the token before"] == "layer 0 head 0"
    assert heads["attends to the token after"] == "none; nearest: layer 0 head 0"
    assert heads["attends far away: mean distance (tokens or patches)"].startswith("none; nearest:")


def test_keys_work_without_a_click_and_from_a_checkbox(visit) -> None:
    page = visit(SAMPLES["causal_lm"](), "#q=5")
    page.keyboard.press("ArrowDown")
    assert "q=6" in page.url
    page.check("#marks")
    page.focus("#marks")
    page.keyboard.press("r")
    page.wait_for_url("**map=rollout**")
    page.keyboard.press("ArrowUp")
    assert "q=5" in page.url
    page.click("#toc button:text-is('Statistics')")
    assert page.evaluate("scrollY") > 300
    assert "q=5" in page.url


def test_steps_are_slower_with_reduced_motion(visit) -> None:
    page = visit(SAMPLES["causal_lm"](), reduced_motion="reduce")
    page.locator("#play").click()
    page.wait_for_timeout(1300)  # without the preference, the second step follows after 900 ms
    assert page.get_attribute("#step", "aria-valuetext").startswith("1 of 4")


def test_segments_are_separated_by_a_line(visit) -> None:
    page = visit(SAMPLES["masked_lm"](), "#layer=0&head=0&q=0&theme=light")
    size = page.evaluate("page.matrix.size")
    column = cells(page)[:, round(5 * size)]
    assert (column[round(1.2 * size) :] > 250).all(-1).mean() > 0.9


def test_masked_position_shows_predictions_with_half_floats(visit) -> None:
    made = SAMPLES["masked_lm"]()
    page = visit(made, "#layer=0&head=1")
    assert page.inner_text("#alternatives li.chosen").split() == ["went", "0.4"]
    assert live(page).startswith("‘[MASK]’ attends to")
    assert value(page) == pytest.approx(shown(made, layer=0, head=1)[4].max(), rel=0.06)


def test_picture_shows_the_brightest_patch_of_a_clicked_one(visit) -> None:
    made = SAMPLES["vit"]()
    page = visit(made, "#map=self&layer=0&head=1")
    weights = shown(made, name="self", layer=0, head=1)
    for query, act in ((0, None), (1 + 2 * 4 + 3, "picture")):
        if act:
            box = page.locator("#picture").bounding_box()
            place = {"x": box["width"] * 3.5 / 4, "y": box["height"] * 2.5 / 4}
            page.locator("#picture").click(position=place)
        best = int(weights[query, 1:].argmax())
        text = page.inner_text("#overlay-text")
        assert f"Largest weights: row {best // 4}, column {best % 4} (" in text
        assert text.count("row ") == 3
        assert float(text.split("(")[1].split(")")[0]) == pytest.approx(
            weights[query, 1:].max(), rel=0.06
        )
    page.focus("#picture")
    page.keyboard.press("ArrowUp")
    assert "Chosen: row 1, column 3" in page.inner_text("#picture-text")
    page.keyboard.press("r")
    page.wait_for_url("**map=rollout**")
    page.click("#thumbs button >> nth=1")  # the heads can be chosen from a map without heads
    assert "map=self&layer=0&head=1" in page.url
    assert page.inner_text("#classes li.chosen").split() == ["ship", "0.9"]
    assert page.inner_text("#truth") == "True class: plane; the most probable class is wrong."


def test_caption_word_shows_its_patches(visit) -> None:
    made = SAMPLES["captioning"]()
    page = visit(made)
    page.click("#text span:text-is('red')")
    best = int(shown(made, name="alpha")[1].argmax())
    assert f"row {best // 4}, column {best % 4}" in page.inner_text("#overlay-text")
    assert page.inner_text("#gate li.chosen").split() == ["red", "0.8"]


def test_word_of_the_gate_list_is_chosen_by_pointer_and_keyboard(visit) -> None:
    page = visit(SAMPLES["captioning"]())
    page.click("#gate button:text-is('red')")
    assert "q=1" in page.url
    assert "‘red’ attends to" in live(page)
    page.keyboard.press("ArrowDown")  # the focus stays in the list
    page.keyboard.press("ArrowDown")
    assert "q=3" in page.url
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.inner_text("#gate li.chosen").split() == ["boat", "0.9"]
    assert page.evaluate("document.activeElement.textContent") == "boat"
    assert page.locator("#gate [aria-current=true]").all_inner_texts() == ["boat"]


def test_lines_of_a_word_appear_under_the_pointer(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=1&head=0&q=0")
    weights = shown(made, name="cross", layer=1, head=0)
    ends = """(all) => all.map((one) => one.getAttribute("d").split(/[MC ]/).filter(Boolean))
        .map((d) => [d[1], d.at(-1)].map((y) => (y - 41) / 22))"""
    for list_, name, at, cells in (
        ("target", "house", 1, [[1, s] for s in range(6) if weights[1, s] > 0.004 * weights.max()]),
        ("source", "Haus", 1, [[t, 1] for t in range(6) if weights[t, 1] > 0.004 * weights.max()]),
    ):
        assert made[0]["rows"][0]["tokens"][list_][at] == name
        page.hover(f"#lines text:text-is('{name}')")
        assert sorted(page.locator("#lines .hover").evaluate_all(ends)) == cells
        assert "q=" not in page.url.replace("q=0", "")
    page.hover("#h-lines")
    assert page.locator("#lines .hover").count() == 0
    assert page.locator("#lines .query").count() > 1


def test_plots_follow_the_chosen_map_and_a_position_says_what_it_counts(visit) -> None:
    made = SAMPLES["translation"]()
    row = made[0]["rows"][0]
    row["curves"] = [
        {"title": f"Entropy of {name}", "x": [0, 1], "y": [1, 2], "map": name, "label": "mean"}
        for name in ("cross", "encoder")
    ]
    page = visit(made)
    assert page.locator("#curves h3").all_inner_texts() == ["Entropy of cross"]
    page.select_option("#map", "encoder")
    assert page.locator("#curves h3").all_inner_texts() == ["Entropy of encoder"]
    assert page.locator("#top th").all_inner_texts()[2] == "position"
    page = visit(SAMPLES["vit"]())
    assert page.locator("#top th").all_inner_texts()[2] == "position ([CLS] is 0)"
    assert page.locator("#curves h3").all_inner_texts() == ["Mean distance"]


def test_document_tints_the_words(visit) -> None:
    page = visit(SAMPLES["document"]())
    tints = page.locator("#document span").evaluate_all(
        "(all) => all.map((one) => parseFloat(one.style.backgroundColor.split('/')[1]))"
    )
    scores = [0.75**0.5 * 0.9, 0.75**0.5 * 0.1, 0.25**0.5 * 0.2, 0.25**0.5 * 0.8]
    np.testing.assert_allclose(tints, np.array(scores) / max(scores) * 0.95, atol=2e-3)
    assert page.is_hidden("#p-matrix")


def test_map_looks_like_the_stored_picture(visit, root: Path) -> None:
    """To replace the picture, delete it and run this test, which then fails once."""
    page = visit(SAMPLES["translation"](), "#layer=1&head=0&q=1&theme=light")
    whole = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), np.float32)
    assert whole.shape == (900, 1280)
    assert whole.std() > 10
    file, found = root / "tests" / "golden" / "look_map.png", cells(page)
    if not file.exists():
        Image.fromarray(found.astype(np.uint8)).save(file)
        pytest.fail(f"{file} was missing and has been written")
    wanted = np.asarray(Image.open(file).convert("RGB"), np.float32)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).mean() < 2
    moved = cells(visit(SAMPLES["translation"](), "#layer=1&head=1&q=1&theme=light"))
    assert np.abs(moved - wanted).mean() > 10


def test_page_is_drawn_by_a_browser_without_a_driver(chromium_program: str, tmp_path: Path) -> None:
    file = tmp_path / "look.html"
    file.write_text(assemble(*SAMPLES["translation"]()[:2]), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command = [chromium_program, *options, "--dump-dom", file.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (table,) = re.findall(r'<table id="top">(.*?)</table>', result.stdout, re.DOTALL)
    assert len(re.findall("<tr>", table)) == 1 + 6
    assert 'data-ready="yes"' in result.stdout
    assert re.search('<div id="error"[^>]*hidden', result.stdout)


def place(page: Any, selector: str) -> tuple[float, float]:
    """Top and bottom of an element in the window, in CSS pixels."""
    box = page.locator(selector).bounding_box()
    return box["y"], box["y"] + box["height"]


@pytest.mark.parametrize(
    ("name", "panel", "canvas"),
    [("causal_lm", "#p-matrix", "matrix"), ("vit", "#p-image", "picture")],
)
def test_the_map_is_at_the_top_and_a_head_leads_to_it(
    visit, name: str, panel: str, canvas: str
) -> None:
    page = visit(SAMPLES[name](), "#map=self&layer=0&head=0&q=5")
    assert place(page, panel)[0] < 250
    assert place(page, f"#{canvas}")[0] < 450
    for button in ("#thumbs button >> nth=3", "#heads tbody tr:nth-child(2) button"):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert place(page, panel)[1] < 0
        page.click(button)
        assert 0 <= place(page, panel)[0] < 200
        assert page.evaluate("document.activeElement.id") == canvas
    page.keyboard.press("ArrowLeft")
    assert "head=0" in page.url
    assert "q=" in page.url


def test_the_step_says_which_token_is_true_chosen_or_most_probable(visit) -> None:
    assert "[.] — chosen token" in visit(SAMPLES["causal_lm"]()).inner_text("#step-text")
    made = SAMPLES["masked_lm"]()
    assert "[went]" in visit(made).inner_text("#step-text")
    assert "most probable token with probability 0.4" in visit(made).inner_text("#step-text")
    made[0]["rows"][0]["steps"][0]["truth"] = "went"
    assert "true token with probability 0.4" in visit(made).inner_text("#step-text")


def test_the_frame_of_a_step_is_on_the_token_that_it_predicts(visit) -> None:
    made = SAMPLES["causal_lm"]()
    tokens = made[0]["rows"][0]["tokens"]["tokens"]  # the last four are generated
    page = visit(made, "#layer=0&head=0")

    def check(row: int, framed: int) -> None:
        spans = page.locator("#text .tokens span")
        classes = [x or "" for x in spans.evaluate_all("(all) => all.map((x) => x.className)")]
        assert [i for i, x in enumerate(classes) if "query" in x] == [framed]
        assert page.evaluate("page.view.row") == row

    check(row=7, framed=8)
    page.locator("#step").fill("3")
    check(row=9, framed=10)
    page.click("#text span >> nth=11")
    check(row=10, framed=11)
    assert page.get_attribute("#step", "aria-valuetext").startswith("4 of 4")
    assert f"The model reads ‘{tokens[10].strip()}’".replace("‘", "‘␣") in page.inner_text(
        "#matrix-hint"
    )
    page.click("#text span >> nth=3")  # of the prompt
    check(row=3, framed=3)
    assert "The model reads" not in page.inner_text("#matrix-hint")


def test_ticks_of_a_large_map_are_positions_with_tokens(visit) -> None:
    page = visit(causal_lm(80), "#layer=0&head=0&q=3")
    texts = page.evaluate("""() => {
        const own = CanvasRenderingContext2D.prototype.fillText, texts = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            const { e, f } = this.getTransform();
            texts.push([text, e, f, y]);
            own.call(this, text, x, y);
        };
        drawMatrix();
        return texts;
    }""")
    ticks = [text for text, *_ in texts if re.match(r"\d+ ", text)]
    size = page.evaluate("page.matrix.size")
    every = next(n for n in (2, 5, 10, 20) if n * size >= 20)
    assert len(ticks) == 2 * len(range(0, 80, every))
    assert {"0 ␣the", "10 ␣the", "20 ␣the", "70 ␣the"} <= set(ticks)
    rows = {text: y for text, _, _, y in texts[: len(ticks) // 2]}
    assert rows["10 ␣the"] - rows["0 ␣the"] == pytest.approx(10 * size)


def test_the_heads_of_a_layer_are_drawn_together(visit) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=1&head=0&q=2")
    page.check("#together")
    assert "together=1" in page.url
    weights = [shown(made, name="cross", layer=1, head=head)[2] for head in (0, 1)]
    limit = max(shown(made, name="cross", layer=1, head=head).max() for head in (0, 1))
    lines = page.locator("#lines path").evaluate_all(
        "(all) => all.map((x) => [x.style.stroke, parseFloat(x.getAttribute('stroke-width'))])"
    )
    paints = list(dict.fromkeys(paint for paint, _ in lines))
    assert len(paints) == 2
    for paint, row in zip(paints, weights, strict=True):
        widths = [width for of, width in lines if of == paint]
        expected = sorted((0.4 + 6 * a / limit for a in row if a > 0.004 * limit), reverse=True)
        assert widths == pytest.approx(expected, abs=0.05)
    swatches = page.locator("#together-heads button").evaluate_all(
        "(all) => all.map((one) => [one.textContent, one.style.borderLeftColor])"
    )
    assert swatches == [[f"head {i}", paint] for i, paint in enumerate(paints)]
    page.click("#together-heads button >> nth=1")
    assert "head=1" in page.url
    page.uncheck("#together")
    strokes = page.locator("#lines path").evaluate_all("(all) => all.map((x) => x.style.stroke)")
    assert set(strokes) == {""}
    assert page.locator("#together-heads button").count() == 0


def test_a_printed_page_is_light_and_complete(visit) -> None:
    page = visit(SAMPLES["causal_lm"](), color_scheme="dark")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.emulate_media(media="print")
    page.wait_for_selector("html[data-theme=light]", state="attached")
    sizes = page.locator("#thumbs canvas").evaluate_all("(all) => all.map((one) => one.width)")
    assert sizes == [12] * 4
    assert page.is_visible("#provenance")
    for hidden in ("#controls", "#toc", "#theme", "#play", "#csv"):
        assert page.is_hidden(hidden)
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert (
        page.evaluate("getComputedStyle(document.getElementById('heads').parentElement).overflow")
        == "visible"
    )
    page.emulate_media(media="screen")
    page.wait_for_selector("html[data-theme=dark]", state="attached")
    assert page.is_visible("#controls")


def test_models_are_called_by_their_runs(visit) -> None:
    made = SAMPLES["compare"]()
    page = visit(made, "#model=1")
    options = page.locator("#model option").all_inner_texts()
    assert options == ["small", "other.ckpt", "difference (first − second)"]
    assert page.inner_text("#subtitle").endswith("from last.ckpt; compared with other.ckpt")
    made[0]["provenance"] |= {"name": "", "checkpoint": ""}
    page = visit(made)
    assert page.inner_text("#subtitle").endswith("parameters; compared with other.ckpt")
    assert page.locator("#model option").all_inner_texts()[0] == "first"


def test_hostile_tokens_are_shown_and_not_run(visit) -> None:
    maps = heads("self", len(HOSTILE), len(HOSTILE), 2, 2)
    row = {"tokens": {"tokens": HOSTILE}, "title": HOSTILE[1]}
    row["words"] = {"tokens": list(range(len(HOSTILE)))}
    page = visit(document("masked_lm", [(row, maps)], title=HOSTILE[0]))
    assert page.locator("main img, main script").count() == 0
    labels = page.locator("#lines text").all_text_contents()
    assert {"</script>", "\\u{202e}abc", "עברית", "∅", "␣", "↵", "\\u{0}"} <= set(labels)
    page.check("#words")


def test_saved_files_hold_the_shown_map(visit, tmp_path: Path) -> None:
    made = SAMPLES["translation"]()
    page = visit(made, "#layer=1&head=0")
    for name in ("csv", "png"):
        with page.expect_download() as waiting:
            page.click(f"#{name}")
        waiting.value.save_as(tmp_path / f"map.{name}")
        assert waiting.value.suggested_filename == f"attention-input1-cross-layer1-head0.{name}"
    numbers = np.loadtxt(tmp_path / "map.csv", delimiter=",", skiprows=1, usecols=range(1, 7))
    np.testing.assert_allclose(numbers, shown(made, name="cross", layer=1, head=0), rtol=5e-3)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_reader_without_scripts_is_told_so(visit) -> None:
    page = visit(SAMPLES["translation"](), java_script_enabled=False)
    assert "by a script" in page.inner_text("noscript")


def test_damaged_maps_are_reported(chromium, tmp_path: Path) -> None:
    text = assemble(*causal_lm()[:2])
    file = tmp_path / "damaged.html"
    file.write_text(text.replace('id="maps">', 'id="maps">AAAA'), encoding="utf-8")
    page = chromium.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("#error:visible")
    assert "could not be drawn" in page.inner_text("#error")
    page.close()


def test_a_browser_that_cannot_unpack_the_maps_is_told_so(chromium, tmp_path: Path) -> None:
    file = tmp_path / "old.html"
    file.write_text(assemble(*SAMPLES["causal_lm"]()[:2]), encoding="utf-8")
    page = chromium.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(file.as_uri())
    page.wait_for_selector("#error:visible", state="attached")
    assert "this browser cannot unpack the maps" in page.text_content("#error")
    page.close()


@pytest.mark.slow
def test_twelve_layers_of_512_tokens_stay_within_memory_and_elements(visit) -> None:
    page = visit(causal_lm(512, 12, 12), "#q=511")
    assert page.evaluate("performance.memory.usedJSHeapSize") < 300e6
    page.focus("#matrix")
    page.keyboard.press("ArrowUp")
    assert "q=510" in page.url
    assert page.locator("svg *").count() < 2000
    page.check("#zoom")
    assert page.evaluate("page.matrix.r") == [472, 512]
