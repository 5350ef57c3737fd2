"""Fixtures of the benchmark tests."""

import pytest

from fourfold.reproduce import interleaved_timing


@pytest.fixture(autouse=True)
def _small_reference_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the matrix product and the copy fast, since these tests measure no speed."""
    monkeypatch.setitem(interleaved_timing.SIDE, "cpu", 32)
    monkeypatch.setitem(interleaved_timing.COPIED_BYTES, "cpu", 1024)
