import pytest

from fourfold.callbacks.monitoring.throughput import Reading, ThroughputMeter


def test_validation_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    meter = ThroughputMeter()
    meter.add(100)
    clock[0] = 2.0
    assert meter.read() == (100, 2.0)
    meter.add(30)
    meter.pause()
    clock[0] = 12.0
    assert meter.read() == (130, 2.0)
    meter.resume()
    clock[0] = 13.0
    assert meter.read() == (130, 3.0)
    meter.reset()
    assert meter.read() == (0, 0.0)


def test_rate_between_two_readings() -> None:
    assert Reading(130, 3.0).rate_since(Reading(100, 2.0)) == 30.0
    assert Reading(130, 3.0).rate_since(Reading(130, 3.0)) == 0.0
