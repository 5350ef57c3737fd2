import pytest

from fourfold.callbacks.meter import Meter


def test_only_training_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    meter = Meter()
    meter.add(100)
    clock[0] = 2.0
    assert meter.read() == 50.0
    meter.add(30)
    meter.pause()
    clock[0] = 12.0
    meter.go_on()
    clock[0] = 13.0
    assert meter.read() == 30.0
    assert meter.read() == 0.0  # no time has passed
