import subprocess
from dataclasses import replace

import pytest

from fourfold.bench.memory import NotMeasured, peak_memory
from fourfold.bench.shapes import Settings, Shape


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings(size="tiny", precision="fp32", budget=250.0)


def test_a_model_takes_what_its_weights_and_their_moments_take(settings: Settings) -> None:
    shape = Shape(256, 2, 2, 50_000, 2, 16)  # 14 million parameters, and next to no activations
    peak = peak_memory("fourfold", "causal_lm", shape, settings)
    weights = 4 * 14.4e6
    assert 3.5 * weights < peak < 12 * weights


def test_what_takes_too_long_is_said(settings: Settings) -> None:
    hasty = replace(settings, budget=0.05)
    with pytest.raises(NotMeasured, match=r"over 0\.05 s"):
        peak_memory("fourfold", "vit", Shape(8, 1, 1, 3, 1, 16), hasty)


@pytest.mark.parametrize(
    ("code", "complaint", "said"),
    [
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory", "does not fit"),
        (1, "torch.OutOfMemoryError: CUDA out of memory", "does not fit"),
        (-9, "", "does not fit"),
        (1, "ValueError: other", "failed: ValueError: other"),
    ],
)
def test_what_does_not_fit_is_said(
    code: int, complaint: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, "", f"Traceback\n{complaint}\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)
    with pytest.raises(NotMeasured, match=said):
        peak_memory("fourfold", "vit", Shape(8, 1, 1, 3, 1, 16), Settings(size="tiny"))
