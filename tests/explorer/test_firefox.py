"""The page of attention maps in a headless Firefox, driven by its own protocol (Marionette)."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.explorer.page import assemble
from tests.explorer.test_live import Made
from tests.fixtures.explorer_documents import SAMPLES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CONSOLE = """return Services.console.getMessageArray()
    .filter((one) => one instanceof Ci.nsIScriptError && /^file:|^blob:/.test(one.sourceName))
    .map((one) => one.errorMessage)"""


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start Firefox, and return a function that sends a command and returns its result."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("needs Firefox on PATH (on Debian: apt-get install firefox-esr)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    profile = tmp_path_factory.mktemp("firefox")
    (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    options = ["--headless", "--marionette", "--remote-allow-system-access", "--no-remote"]
    process = subprocess.Popen(
        [program, *options, "--profile", str(profile)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=120)
            break
        except OSError:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.3)
    stream = connection.makefile("rwb")

    def read() -> Any:
        size = b""
        while not size.endswith(b":"):
            size += stream.read(1)
        return json.loads(stream.read(int(size[:-1])))

    def send(command: str, **options: Any) -> Any:
        text = json.dumps([0, 1, command, options])
        stream.write(f"{len(text)}:{text}".encode())
        stream.flush()
        _, _, error, result = read()
        assert error is None, error
        return result

    read()  # the greeting
    send("WebDriver:NewSession")
    yield send
    connection.close()
    process.terminate()
    process.wait(60)


def visit(send: Any, file: Path) -> list[str]:
    """Open a page, wait until it is drawn or reports an error, and return console messages."""
    send("WebDriver:Navigate", url=file.as_uri())
    state = "[document.documentElement.dataset.ready, document.getElementById('error').textContent]"
    end = time.monotonic() + 60
    while not any(run(send, f"return {state}")):
        assert time.monotonic() < end, f"{file} is not drawn"
        time.sleep(0.2)
    send("Marionette:SetContext", value="chrome")
    messages = run(send, CONSOLE)
    run(send, "Services.console.reset()")
    send("Marionette:SetContext", value="content")
    return messages


def run(send: Any, script: str) -> Any:
    return send("WebDriver:ExecuteScript", script=script, args=[])["value"]


@pytest.mark.parametrize("name", ["translation", "vit", "causal_lm"])
def test_page_is_drawn_in_firefox(send: Any, tmp_path: Path, name: str) -> None:
    source, data, arrays = SAMPLES[name]()
    entry, array = source["rows"][0]["maps"][1], arrays[1]  # head 0 of layer 0
    file = tmp_path / "look.html"
    file.write_text(assemble(source, data), encoding="utf-8")
    assert visit(send, file) == []
    assert run(send, "return document.getElementById('error').textContent") == ""
    run(send, f"update({{ map: {json.dumps(entry['name'])}, layer: 0, head: 0 }})")
    found = run(send, "return [...makeView().data]")
    np.testing.assert_allclose(np.reshape(found, array.shape), array, atol=0.004)
    (body,) = send("WebDriver:FindElement", using="css selector", value="body")["value"].values()
    send("WebDriver:ElementSendKeys", id=body, text="]")
    assert "layer=1" in run(send, "return location.hash")


def test_live_page_runs_its_model_in_firefox(send: Any, texts: Path, tmp_path: Path) -> None:
    made = Made("vit", texts)
    file = tmp_path / "live.html"
    file.write_text(made.html, encoding="utf-8")
    assert visit(send, file) == []
    run(send, "document.getElementById('live-run').click()")
    cells = "[...document.querySelectorAll('#live-table tbody tr:first-child td')]"
    end = time.monotonic() + 60
    while not (found := run(send, f"return {cells}.map((one) => one.textContent)")):
        assert time.monotonic() < end, run(send, "return document.body.textContent")
        time.sleep(0.2)
    pixels = made.examples[0].image.flatten().tolist()
    p = torch.tensor(made.logits({"pixels": pixels}, {})).softmax(-1)
    assert float(found[1]) == pytest.approx(float(p.max()), rel=0.01)
    send("Marionette:SetContext", value="chrome")
    assert run(send, CONSOLE) == []
    send("Marionette:SetContext", value="content")


def test_firefox_reports_what_the_policy_forbids(send: Any, tmp_path: Path) -> None:
    """A script that differs from its hash is not run, and the console says so."""
    file = tmp_path / "changed.html"
    text = assemble(*SAMPLES["translation"]()[:2])
    text = text.replace("</body>", "<script>document.title = 'changed';</script></body>")
    file.write_text(text, encoding="utf-8")
    messages = visit(send, file)
    assert len(messages) == 1
    assert "Content-Security-Policy" in messages[0]
    assert run(send, "return document.title") != "changed"
