"""A matrix product and a copy that take no time: nothing here is about speed."""

import pytest

from fourfold.bench import clock


@pytest.fixture(autouse=True)
def _small_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clock.SIDE, "cpu", 32)
    monkeypatch.setitem(clock.COPIED, "cpu", 1024)
