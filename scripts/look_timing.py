"""Time and size of the page of `fourfold look` for large models, beside bertviz.

    python -m scripts.look_timing OUT [--repeats 3] [--libraries DIR]

A causal LM with 12 layers of 12 heads reads 512 tokens, and a ViT-B/16 an image of 224 pixels; both
have random weights. Measured are the CPU time in which the page is computed and written, its size,
the time from the request to the first contentful paint and to the complete drawing in Chromium,
which Playwright drives, and the CPU time of the main thread of the page until then. A page is
complete if the script has drawn the map (fourfold), or the first line between two tokens (bertviz).
The packages playwright and bertviz have to be installed. The page of bertviz loads three scripts
from the network; DIR is a folder node_modules with d3, jquery and requirejs that replaces the
network. OUT gets timing.json and timing.md.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

import fourfold
from fourfold.data import CausalTextData
from fourfold.explorer.image_views import patch_names
from fourfold.layers.base_model import Model
from fourfold.tokenization.tokenizer import Tokenizer

LIMIT = 120.0  # seconds after which a page that is not complete is given up
SCRIPTS = {
    "require": "requirejs/require.js",
    "d3": "d3/dist/d3.min.js",
    "jquery": "jquery/dist/jquery.min.js",
}
DRAWN = {"fourfold look": "html[data-ready=yes]", "bertviz": "#vis svg line, #vis svg path"}


def language_model() -> tuple[Model, str, torch.Tensor]:
    """Return a model with random weights, a text of 512 tokens, and the tokens."""
    data = CausalTextData()
    data.setup()
    torch.manual_seed(0)
    model = fourfold.create("gpt2", vocab_size=data.vocab_size, max_len=512).eval()
    model.artifacts = data.artifacts()
    model.tokenizer = Tokenizer.from_str(model.artifacts["tokenizer"])
    ids = model.tokenizer.encode("The value of an expression is a list of names. " * 100)[:512]
    return model, model.tokenizer.decode(ids), torch.tensor([ids])


def image_model(folder: Path) -> tuple[Model, Path, torch.Tensor]:
    """Return a model with random weights, the path of an image, and its pixels."""
    torch.manual_seed(0)
    model = fourfold.create("vit_base_patch16_224").eval()
    transform = {"crop_pct": 1.0, "crop_mode": "center", "interpolation": "bicubic"}
    model.artifacts = {"image_size": 224, "n_channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3}
    model.artifacts |= transform
    ramp = np.linspace(0, 255, 224)
    pixels = np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[::-1]), -1)
    Image.fromarray(pixels.astype(np.uint8)).save(folder / "image.png")
    return model, folder / "image.png", torch.zeros(1, 3, 224, 224)


def bertviz_page(model: Model, inputs: torch.Tensor, tokens: list[str]) -> str:
    """Return the head view of bertviz, with the weights of all layers and heads."""
    import bertviz

    maps = fourfold.attention(model, inputs, dtype="float32")
    weights = [torch.from_numpy(array) for array in maps.values()]
    view = bertviz.head_view(weights, tokens, html_action="return")
    return f"<!doctype html><html><body>{view.data}</body></html>"


def serve(libraries: Path | None) -> Callable[[Any], None]:
    """Return a handler of requests that reads scripts from a folder in place of the network."""

    def handle(route: Any) -> None:
        name = next((x for x in SCRIPTS if f"/{x}" in route.request.url), None)
        if route.request.url.startswith("file:"):
            route.continue_()
        elif libraries is not None and name is not None:
            route.fulfill(path=str(libraries / SCRIPTS[name]))
        else:
            route.abort()

    return handle


def paint(browser: Any, file: Path, selector: str, libraries: Path | None) -> dict[str, Any]:
    """Return the seconds to the first paint and to the complete drawing, and the CPU time.

    A value is None if the page is not complete after the limit, or crashes.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.route("**", serve(libraries))
    found: dict[str, Any] = {"first_paint": None, "complete": None, "cpu": None}
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    begin = time.perf_counter()
    try:
        page.goto(file.as_uri(), wait_until="commit", timeout=1000 * LIMIT)
        page.wait_for_selector(selector, state="attached", timeout=1000 * LIMIT)
        found["complete"] = time.perf_counter() - begin
        entries = "performance.getEntriesByName('first-contentful-paint').map((x) => x.startTime)"
        page.wait_for_function(f"{entries}.length > 0", timeout=1000 * LIMIT)
        found["first_paint"] = page.evaluate(entries)[0] / 1000
        metrics = {x["name"]: x["value"] for x in session.send("Performance.getMetrics")["metrics"]}
        found["cpu"] = metrics["TaskDuration"]
    except Exception as error:
        if "Timeout" not in type(error).__name__ and "crash" not in str(error).lower():
            raise
        print(f"not complete: {str(error).splitlines()[0]}", flush=True)
    page.close()
    return found


def measure(
    case: str, make: dict[str, Callable[[], str]], folder: Path, repeats: int, options: Any
) -> list[dict[str, Any]]:
    """Return a row with the medians of each tool."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    rows = []
    for tool, write in make.items():
        seconds, paints = [], []
        file = folder / "page.html"
        for _ in range(repeats):
            begin = time.process_time()
            file.write_text(write(), encoding="utf-8")
            seconds.append(time.process_time() - begin)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            for _ in range(repeats):
                paints.append(paint(browser, file, DRAWN[tool], options.libraries))
                if paints[-1]["complete"] is None:
                    break  # the limit is long
            browser.close()
        row = {"model": case, "tool": tool, "write": median(seconds)}
        row["megabytes"] = file.stat().st_size / 1e6
        for name in ("first_paint", "complete", "cpu"):
            values = [one[name] for one in paints]
            row[name] = None if None in values else median(values)
        rows.append(row)
        print(row, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a page (3)")
    parser.add_argument("--libraries", type=Path, help="folder with the scripts of bertviz")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lm, text, ids = language_model()
        tokens = [f"{i}" for i in range(ids.shape[1])]
        make = {
            "fourfold look": lambda: fourfold.look(lm, text, generate=0).html,
            "bertviz": lambda: bertviz_page(lm, ids, tokens),
        }
        rows += measure("12 layers x 12 heads, 512 tokens", make, folder, options.repeats, options)
        vit, image, pixels = image_model(folder)
        make = {
            "fourfold look": lambda: fourfold.look(vit, image=image).html,
            "bertviz": lambda: bertviz_page(vit, pixels, patch_names(14, 14, 1)),
        }
        rows += measure("ViT-B/16, 224 pixels", make, folder, options.repeats, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "timing.json").write_text(json.dumps(rows, indent=1) + "\n")
    head = "| model | tool | written, CPU s | MB | first paint, s | complete, s | complete, CPU s |"
    lines = [head, "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        values = [row[name] for name in ("write", "megabytes", "first_paint", "complete", "cpu")]
        shown = [f"not within {LIMIT:g}" if value is None else f"{value:.2f}" for value in values]
        lines.append(f"| {row['model']} | {row['tool']} | {' | '.join(shown)} |")
    (options.out / "timing.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
