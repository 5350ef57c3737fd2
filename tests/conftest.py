"""Fixtures of all tests: no network, one thread per worker, a seed, `data_dir`, `chromium`."""

import os
import random
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Set before torch or transformers is imported, and inherited by the commands that tests start.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    WANDB_MODE="disabled",
    MPLBACKEND="Agg",
    TOKENIZERS_PARALLELISM="false",
)
if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the fixture `data_dir` with `data`; run tests that fork first.

    After a call of `torch.compile` or of a fake tensor, torch supports no backward pass in a forked
    child.
    """
    items.sort(key=lambda item: not hasattr(getattr(item, "module", None), "together"))
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape file names that are not UTF-8 in captured logs, which xdist could not send."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    random.seed(0)
    # Importing torch takes two seconds, which tests without torch do not need.
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the token cache of tests, and of commands that they start, out of the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOURFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the directory of the real data sets: $FOURFOLD_DATA or shared/data."""
    named = os.environ.get("FOURFOLD_DATA")
    if named:
        assert Path(named).is_dir(), f"FOURFOLD_DATA names {named}, which is not a directory"
        return Path(named)
    for folder in (ROOT / "shared" / "data", ROOT.parent / "shared" / "data"):
        if folder.is_dir():
            return folder
    pytest.skip("needs the data sets; name their directory in FOURFOLD_DATA")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the data of `tests/fixtures/tiny_tasks.py`."""
    from tests.fixtures.tiny_tasks import write_texts

    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def chromium_program() -> str:
    """Return the path of the browser."""
    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("needs Chromium on PATH (on Debian: apt-get install chromium)")
    return program


@pytest.fixture(scope="module")
def chromium(chromium_program: str) -> Iterator[Any]:
    """Return the headless browser, which Playwright drives."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the package playwright (pip install playwright)"
    )
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium_program, args=[*options, "--enable-precise-memory-info"]
        )
        yield browser
        browser.close()
