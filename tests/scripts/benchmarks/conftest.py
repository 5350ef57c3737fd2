"""Fixtures of the benchmark tests."""

import pytest

from scripts.benchmarks import measurements


@pytest.fixture(autouse=True)
def _small_reference_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the products and the copy fast, since these tests measure no speed."""
    monkeypatch.setitem(measurements.PRODUCT_FLOPS, "cpu", 1)
    monkeypatch.setitem(measurements.COPIED_BYTES, "cpu", 1024)
