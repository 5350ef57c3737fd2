"""The live page: what its file holds and refuses, and its panel in a headless Chromium."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fourfold
from fourfold.commands import look
from fourfold.data.vision.eval_transforms import eval_transform, resize_and_crop
from fourfold.data.vision.image_stores import decode
from fourfold.edits import zero
from fourfold.errors import InputError
from fourfold.explorer import live
from fourfold.explorer.document import Settings, build_document, make_view
from fourfold.explorer.live import live_part
from fourfold.explorer.page import assemble
from fourfold.explorer.weights import pack_model
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.tokenization.tokenizer import Tokenizer
from tests.explorer.test_page import Page, resource
from tests.fixtures import tiny_tasks
from tests.fixtures.explorer_documents import SAMPLES

FAMILIES: dict[str, Any] = {
    "causal_lm": tiny_tasks.causal,
    "masked_lm": tiny_tasks.masked,
    "translation": tiny_tasks.translation,
    "vit": tiny_tasks.images,
}
browser = pytest.mark.browser


class Made:
    """Live page of a model with random weights, and what Python computes with the same weights."""

    def __init__(self, family: str, texts: Path) -> None:
        torch.manual_seed(0)
        task, data = FAMILIES[family](texts)
        data.setup()
        fields = {name: getattr(data, name) for name in task.inferred_from_data}
        model = task.model_class(replace(task.config, **fields)).eval()
        with torch.no_grad():  # the weights of a new model are near uniform
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        model.artifacts = data.artifacts()
        if "tokenizer" in model.artifacts:
            model.tokenizer = Tokenizer.from_str(model.artifacts["tokenizer"])
            tokenizer = model.tokenizer
            ends = tokenizer.eos_id, tokenizer.pad_id
            model.generation_defaults = GenerationDefaults(tokenizer.bos_id, *ends)
        self.packed = pack_model(model)
        self.model: Any = self.packed.model
        self.view = make_view(self.model, Settings(generate=4))
        dataset = data.split("test")
        self.examples = self.view.from_batch(dataset.batch(np.arange(2), 0, 0), dataset)
        document, maps = build_document(self.model, self.examples, Settings(generate=4))
        document["live"] = live_part(self.view, self.packed, self.examples)
        self.document, self.html = document, assemble(document, maps)

    def logits(self, given: dict[str, Any], edits: dict[str, Any]) -> np.ndarray:
        """Logits (T, V) or (K,) of an input of the engine."""
        lists = [given[name] for name in ("ids", "source", "target") if name in given]
        inputs: list[Any] = [torch.tensor([ids]) for ids in lists]
        if "pixels" in given:
            shape = self.model.example_inputs()[0].shape
            inputs = [torch.tensor(given["pixels"]).view(shape)]
        with torch.no_grad(), fourfold.edit(self.model, edits):
            return self.model(*inputs)[0].numpy()


@pytest.fixture(scope="module")
def made(texts: Path) -> Any:
    """Return a function from a family to its live page, which is made once."""
    pages: dict[str, Made] = {}

    def get(family: str) -> Made:
        if family not in pages:
            pages[family] = Made(family, texts)
        return pages[family]

    return get


@pytest.mark.parametrize("family", FAMILIES)
def test_only_a_live_page_has_a_model_and_may_start_a_worker(made, family: str) -> None:
    text = made(family).html
    page, plain = Page(text), Page(assemble(*SAMPLES[family]()[:2]))
    assert set(page.inner) - set(plain.inner) == {"model-values", "weights"}
    policies = [
        next(a["content"] for _, a in one.elements if a.get("http-equiv")) for one in (page, plain)
    ]
    assert [policy.endswith("; worker-src blob:") for policy in policies] == [True, False]
    assert re.search(
        r'<script type="text/plain" id="weights">[^<]+</script></body>\s*</html>', text
    )
    names = ("tokenize.js", "engine.js", "pictures.js", "live.js", "look.js")
    assert page.inner["script"] == resource("pure.js") + "".join(
        resource(name).removeprefix('"use strict";\n') for name in names
    )
    assert not re.search(r"<!--|-->|</script", page.inner["script"])
    code = re.sub(r"//.*", "", page.inner["script"])
    assert not re.search(r"\b(fetch|import|eval|Function|XMLHttpRequest|innerHTML)\b\s*[(=]", code)


def test_models_that_are_large_for_a_browser_are_refused(made, monkeypatch) -> None:
    one = made("vit")
    for name, limit in (("MAX_BYTES", 100), ("MAX_PRODUCTS", 100)):
        with monkeypatch.context() as changed:
            changed.setattr(live, name, limit)
            with pytest.raises(
                InputError, match=r"--live needs [\d,]+ .*the limit is 100; --live-a"
            ):
                live_part(one.view, one.packed, one.examples)
            live_part(one.view, one.packed, one.examples, check=False)


def test_the_command_writes_a_live_page(root: Path, tmp_path: Path) -> None:
    run = str(root / "tests" / "fixtures" / "run_0_2_0" / "vit" / "checkpoints" / "last.ckpt")
    out = tmp_path / "look.html"
    assert look.main([run, "--live", "--out", str(out)]) == 0
    values = json.loads(Page(out.read_text(encoding="utf-8")).inner["model-values"])
    assert values["index"]["model"]["kind"] == "ViT"
    assert len(values["pictures"]) == 8
    with pytest.raises(InputError, match="--live needs a single checkpoint"):
        look.main([run, run, "--live", "--out", str(tmp_path / "two.html")])


@pytest.mark.parametrize("name", ["engine.js", "live.js", "pictures.js"])
def test_scripts_of_a_live_page_parse_and_are_small(name: str) -> None:
    lines = [line.strip() for line in resource(name).splitlines()]
    code = [line for line in lines if line and not line.startswith(("//", "/*", "*"))]
    assert len(code) <= {"engine.js": 350, "live.js": 300, "pictures.js": 65}[name]
    if shutil.which("node"):
        file = str(Path(live.__file__).parent / name)
        assert subprocess.run(["node", "--check", file], capture_output=True).returncode == 0


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("shape", "resized", "size", "squash"),
    [
        ((37, 50), (9, 9), (8, 8), False),
        ((50, 31), (17, 12), (14, 9), False),
        ((20, 90), (11, 13), (8, 8), True),
        ((5, 4), (16, 16), (11, 15), False),  # enlarged
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_resized_as_in_python(
    channels: int, shape: Any, resized: Any, size: Any, squash: bool, interpolation: str
) -> None:
    """All levels differ by 1 at most, and nearly all are equal."""
    random = np.random.default_rng(0)
    image = random.integers(256, size=(*shape, 4), dtype=np.uint8)
    image[..., 3] = 255
    decoded = decode(Image.fromarray(image[..., :3]), channels, "image")
    wanted = resize_and_crop(decoded[None], resized, size, interpolation, squash)[0]
    options = {"resized": resized, "size": size, "squash": squash, "interpolation": interpolation}
    task = {
        "image": {"width": shape[1], "height": shape[0], "data": image.flatten().tolist()},
        "options": {**options, "mean": [0.5] * channels, "std": [0.25] * channels},
    }
    file = str(Path(live.__file__).parent / "pictures.js")
    code = f"""const {{ preprocess, normalized }} = require({json.dumps(file)});
    const {{ image, options }} = JSON.parse(require("fs").readFileSync(0));
    const levels = preprocess(image, options);
    console.log(JSON.stringify([levels, normalized(levels, options)].map((x) => Array.from(x))));"""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    found = subprocess.run(
        ["node", "-e", code], input=json.dumps(task), text=True, check=True, stdout=-1
    )
    levels, pixels = map(np.array, json.loads(found.stdout))
    difference = np.abs(
        levels.reshape(*size, channels) - wanted.permute(1, 2, 0).numpy().astype(int)
    )
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.1
    normal = (levels.reshape(*size, channels) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(pixels, normal.transpose(2, 0, 1).flatten(), atol=1e-6)


@pytest.fixture
def visit(chromium: Any, made: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens the live page of a family, from a file without a network.

    At the end of a test: the page requested itself and its worker only, and wrote no message.
    """
    seen: list[str] = []
    contexts = []

    def opened(family: str, **options: Any) -> Any:
        file = tmp_path / f"{family}.html"
        file.write_text(made(family).html, encoding="utf-8")
        size = {"width": 1280, "height": 900}
        context = chromium.new_context(**{"viewport": size, "offline": True, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.append(request.url.split("#")[0]))
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready], #error:visible", state="attached")
        assert page.text_content("#error") == ""
        return page

    yield opened
    for context in contexts:
        context.close()
    kinds = [url for url in seen if not url.startswith(("file://", "blob:", "data:image/"))]
    assert not kinds


def start(page: Any) -> None:
    """Press Run, and wait for the result."""
    page.click("#live-run")
    page.wait_for_selector("#live-table tbody tr")


def toggle(page: Any, name: str, word: str) -> None:
    """Press the button of a head, and wait until the panel says that it is off or on."""
    page.click(f'#live-heads button[data-name="{name}"]')
    page.wait_for_selector(f"#live-state:has-text(' {word}: ')")


def maps(page: Any, model: int) -> list[list[float]]:
    """Weights of all maps of the live input, without or with edits."""
    found: list[list[float]] = page.evaluate(
        "(model) => page.doc.rows.at(-1).maps.filter((map) => map.model === model)"
        ".map((map) => Array.from(map.data))",
        model,
    )
    return found


HEADS = {"translation": "decoder.0.cross.head.1"}


@browser
@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_the_panel_are_those_of_python(visit, made, family: str) -> None:
    page, head = visit(family), HEADS.get(family, "0.self.head.1")
    assert page.text_content("#weights") != ""
    start(page)
    assert page.text_content("#weights") == ""
    toggle(page, head, "off")
    given = page.evaluate("({ ...live.given.input })")
    rows = page.evaluate("live.given.rows ?? null")
    for name, edits in (("before", {}), ("after", {head: zero})):
        wanted = made(family).logits(given, edits)
        wanted = wanted if rows is None else wanted[rows]
        found = page.evaluate(f"Array.from(live.{name}.logits)")
        np.testing.assert_allclose(found, wanted.flatten(), atol=1e-4)
    assert head in page.text_content("#live-python")
    table = page.inner_text("#live-table tbody tr >> nth=0").split("\t")
    p = torch.tensor(made(family).logits(given, {})).softmax(-1)
    p = p if p.ndim == 1 else p[rows[0] if rows else 0]
    shown = float(table[1].replace("< ", ""))
    assert shown == pytest.approx(float(p.max()), rel=0.01) or family == "translation"


@browser
def test_a_head_that_is_on_again_leaves_no_trace(visit) -> None:
    page = visit("translation")
    start(page)
    before = maps(page, 0)
    toggle(page, "encoder.0.self.head.0", "off")
    button = page.locator('#live-heads button[data-name="encoder.0.self.head.0"]')
    assert button.get_attribute("aria-pressed") == "true"
    assert maps(page, 0) == before
    assert maps(page, 1) != before
    assert page.locator("#model option").all_inner_texts()[1:] == [
        "edited",
        "difference (first − second)",
    ]
    page.select_option("#model", "2")
    assert page.inner_text("#explain") != ""
    toggle(page, "encoder.0.self.head.0", "on")
    assert button.get_attribute("aria-pressed") == "false"
    assert (maps(page, 0), maps(page, 1)) == (before, [])
    assert page.text_content("#live-python") == "# no edits"


@browser
def test_key_x_switches_the_chosen_head(visit) -> None:
    page = visit("causal_lm")
    start(page)
    page.select_option("#head", "1")
    page.focus("#matrix")
    page.keyboard.press("x")
    page.wait_for_selector("#live-state:has-text('Head 1 of layer 0 off: ')")
    pressed = page.locator('#live-heads [aria-pressed="true"]')
    assert [one.get_attribute("data-name") for one in pressed.all()] == ["0.self.head.1"]
    text = page.input_value("#live-text")
    page.focus("#live-text")
    page.keyboard.press("x")  # a letter of the text
    assert len(page.input_value("#live-text")) == len(text) + 1
    assert pressed.count() == 1


@browser
def test_the_newest_text_is_the_one_that_is_shown(visit) -> None:
    page = visit("causal_lm")
    for text in ("a", "ab", "abc ab"):
        page.fill("#live-text", text)
    page.wait_for_selector("#row option:has-text('live: abc ab')", state="attached")
    length = page.evaluate("live.given.input.ids.length")
    page.fill("#live-text", "")
    page.wait_for_selector("#row option:text-is('3: live: ')", state="attached")
    assert page.evaluate("live.given.input.ids.length") == 1 < length
    page.fill("#live-text", "ab")
    page.click("#live-write")
    page.wait_for_selector("#row option:has-text('live: ab')", state="attached")


@browser
def test_a_head_is_switched_off_in_the_text_that_was_typed(visit) -> None:
    page = visit("causal_lm")
    page.fill("#live-text", "ab")
    page.wait_for_selector("#row option:text-is('3: live: ab')", state="attached")
    # Both within the 150 ms after which a typed text is run.
    page.evaluate("""() => {
        $("live-text").value = "abc";
        $("live-text").dispatchEvent(new Event("input"));
        $("live-heads").querySelector("button").click();
    }""")
    page.wait_for_selector("#row option:text-is('3: live: abc')", state="attached")
    assert page.evaluate("live.given.input.ids.length") == 3
    assert "off" in page.text_content("#live-state")


@browser
def test_a_refused_text_leaves_no_results_under_its_name(visit) -> None:
    page = visit("causal_lm")
    page.fill("#live-text", "ab")
    page.wait_for_selector("#row option:text-is('3: live: ab')", state="attached")
    page.fill("#live-text", "ab " * 3000)
    page.wait_for_selector("#live-state:has-text('must have')")
    page.click("#live-heads button")
    page.click("#live-all")
    page.wait_for_selector("#live-state:has-text('must have')")
    assert page.text_content("#row option:nth-child(3)") == "3: live: ab"
    assert page.evaluate("live.scores.size") == 0


@browser
def test_pictures_that_a_browser_would_change(visit, tmp_path: Path) -> None:
    page = visit("vit")
    picture = Image.fromarray(np.full((8, 16, 3), 100, dtype=np.uint8))
    exif = picture.getexif()
    exif[274] = 6  # turned by 90 degrees
    picture.save(tmp_path / "turned.jpg", exif=exif)
    page.set_input_files("#live-file", str(tmp_path / "turned.jpg"))
    page.wait_for_selector("#row option:has-text('live: turned.jpg')", state="attached")
    size = page.evaluate("decodeFile(live.file).then(({ width, height }) => [width, height])")
    assert size == [16, 8]
    picture.putalpha(3)
    picture.save(tmp_path / "clear.png")
    page.set_input_files("#live-file", str(tmp_path / "clear.png"))
    page.wait_for_selector("#live-state:has-text('transparent')")


@browser
def test_image_of_the_reader(visit, made, tmp_path: Path) -> None:
    """The model of the page reads a PNG of its reader as Python does."""
    file = tmp_path / "own.png"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(33, 21, 3), dtype=np.uint8)).save(
        file
    )
    page = visit("vit")
    page.set_input_files("#live-file", str(file))
    page.wait_for_selector("#row option:has-text('live: own.png')", state="attached")
    model = made("vit").model
    wanted = eval_transform(model.artifacts)(file)
    found = np.array(page.evaluate("Array.from(live.given.input.pixels)")).reshape(wanted.shape)
    step = 1 / 255 / np.array(model.artifacts["std"]).min()  # of one level
    assert np.abs(found - wanted.numpy()).max() < 1.01 * step
    logits = page.evaluate("Array.from(live.before.logits)")
    np.testing.assert_allclose(
        logits, made("vit").logits({"pixels": found.tolist()}, {}), atol=1e-4
    )


@browser
def test_each_head_alone_is_compared_with_python(visit, made) -> None:
    page = visit("vit")
    start(page)
    page.click("#live-all")
    page.wait_for_selector("#live-state:has-text('The prediction needs')")
    given = page.evaluate("({ ...live.given.input })")
    scores = dict(page.evaluate("[...live.scores]"))
    assert set(scores) == {"0.self.head.0", "0.self.head.1"}

    def log_p(edits: dict[str, Any], index: int) -> float:
        return float(torch.tensor(made("vit").logits(given, edits)).log_softmax(-1)[index])

    best = int(made("vit").logits(given, {}).argmax())
    for name, change in scores.items():
        assert change == pytest.approx(log_p({name: zero}, best) - log_p({}, best), abs=1e-4)


@browser
@pytest.mark.parametrize("family", ["causal_lm", "translation", "vit"])
def test_live_panel_is_accessible_and_fits_a_phone(
    visit, family: str, check_accessible: Any
) -> None:
    page = visit(family, color_scheme="light")
    start(page)
    toggle(page, HEADS.get(family, "0.self.head.1"), "off")
    boxes = [one.bounding_box() for one in page.locator("#live-heads button").all()]
    assert all(box["width"] >= 24 and box["height"] >= 24 for box in boxes)
    check_accessible(page)
    if family != "vit":
        assert page.locator("#live-text").bounding_box()["width"] > 150
