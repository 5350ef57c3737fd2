"""Check that a page is accessible and fits a phone, with axe-core."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

AXE = "axe-core@4.14.1"


@pytest.fixture(scope="session")
def check_accessible(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], None]:
    """Return a function that checks an open page, whose theme is light, in both themes."""
    folder = tmp_path_factory.mktemp("axe")  # outside the repository
    npm = shutil.which("npm")
    command = [npm or "", "install", "--silent", "--prefix", str(folder), AXE]
    if npm is None or subprocess.run(command, capture_output=True, timeout=120).returncode:
        pytest.skip(f"needs npm and {AXE}")
    script = folder / "node_modules" / "axe-core" / "axe.min.js"

    def check(page: Any) -> None:
        page.evaluate(script.read_text(encoding="utf-8"))
        violations = "axe.run({options}).then((result) => result.violations)"
        found = page.evaluate(violations.replace("{options}", ""))
        page.set_viewport_size({"width": 375, "height": 800})
        page.click("#theme")
        found += page.evaluate(violations.replace("{options}", "{runOnly: ['color-contrast']}"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        assert not [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]

    return check
