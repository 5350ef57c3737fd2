"""Tests of the measurement of peak memory."""

import subprocess

import pytest

from scripts.benchmarks.memory import MeasurementFailed, peak_memory
from scripts.benchmarks.workloads import Settings, Shape

SETTINGS = Settings(size="tiny", precision="fp32")
SMALL_VIT = Shape(8, 1, 1, 3, 1, 16)


def test_peak_memory_covers_weights_gradients_and_optimizer_state() -> None:
    shape = Shape(256, 2, 2, 50_000, 2, 16)  # 14 million parameters, few activations
    peak = peak_memory("fourfold", "causal_lm", shape, SETTINGS)
    weights = 4 * 14.4e6
    assert 3.5 * weights < peak < 12 * weights


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory", "out of memory"),
        (1, "torch.OutOfMemoryError: CUDA out of memory", "out of memory"),
        (-9, "", "out of memory"),
        (1, "ValueError: other", "failed: ValueError: other"),
    ],
)
def test_reason_of_a_failed_subprocess(
    code: int, error: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, "", f"Traceback\n{error}\n")
    monkeypatch.setattr(subprocess, "run", lambda **options: done)
    with pytest.raises(MeasurementFailed, match=message):
        peak_memory("fourfold", "vit", SMALL_VIT, SETTINGS)
