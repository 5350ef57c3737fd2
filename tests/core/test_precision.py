"""Precision "auto": choice by the measured rate of bf16, its inheritance, and warnings."""

import os
import subprocess
import sys

import pytest
import torch

from fourfold.core import precision
from fourfold.core.precision import resolve_precision, slow_precision
from fourfold.errors import InputError


@pytest.fixture
def speedup(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(precision.SPEEDUP_VARIABLE, "")  # restores the variable after the test
    monkeypatch.delenv(precision.SPEEDUP_VARIABLE)
    return monkeypatch


@pytest.mark.parametrize(("measured", "chosen"), [(0.01, "32-true"), (2.0, "bf16-mixed")])
def test_auto_is_the_faster_precision(
    measured: float, chosen: str, speedup: pytest.MonkeyPatch
) -> None:
    speedup.setattr(precision, "measure_cpu", lambda: measured)
    assert resolve_precision("auto", torch.device("cpu")) == chosen
    assert resolve_precision("bf16", "cpu") == "bf16-mixed"  # an explicit choice is kept


def test_processor_is_measured_once_and_child_processes_make_the_same_choice(
    speedup: pytest.MonkeyPatch,
) -> None:
    measured = iter([3.0])
    speedup.setattr(precision, "measure_cpu", lambda: next(measured))
    assert precision.bf16_speedup() == precision.bf16_speedup() == 3.0
    assert _choice_of_a_process({**os.environ}) == "bf16-mixed 3.0"


def test_measurement_finds_bf16_slow_without_its_instructions(speedup: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    chosen, measured = _choice_of_a_process(environment).split()
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    assert chosen == "32-true"
    assert float(measured) < precision.SLOW


def _choice_of_a_process(environment: dict[str, str]) -> str:
    code = "from fourfold.core import precision as p"
    code += "; print(p.resolve_precision('auto'), p.bf16_speedup())"
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()


def test_measurement_keeps_the_number_of_threads_and_the_random_state() -> None:
    n_threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert precision.measure_cpu() > 0
    assert torch.get_num_threads() == n_threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "measured", "warns"),
    [
        *[("bf16-mixed", 0.01, True), ("bf16-true", 0.5, True), ("bf16-mixed", 2.0, False)],
        ("32-true", 0.01, False),
    ],
)
def test_slow_precision_is_reported_with_its_factor(
    name: str, measured: float, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(precision.SPEEDUP_VARIABLE, str(measured))
    warning = slow_precision(name, "cpu", "--precision")
    if not warns:
        assert warning is None
        return
    assert warning is not None
    assert f"--precision {name} is slow" in warning
    assert f"{measured:g} times as fast" in warning
    assert "32-true" in warning


@pytest.mark.parametrize("is_native", [True, False])
def test_capability_of_a_gpu_is_read(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: is_native)
    assert resolve_precision("auto", "cuda:1") == ("bf16-mixed" if is_native else "32-true")
    assert (slow_precision("bf16-mixed", "cuda", "--precision") is None) == is_native


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match="--precision must be one of"):
        resolve_precision("fp7", "cpu", "--precision")
