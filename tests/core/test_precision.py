"""Precision "auto": choice by the capability of the device, and warnings."""

from pathlib import Path

import pytest
import torch

from fourfold.core import precision
from fourfold.core.precision import cpu_flag, resolve_precision, slow_precision
from fourfold.errors import InputError


@pytest.mark.parametrize(("flag", "chosen"), [(None, "32-true"), ("amx_bf16", "bf16-mixed")])
def test_auto_is_bf16_on_a_cpu_with_bf16(
    flag: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_flag", lambda: flag)
    assert resolve_precision("auto", torch.device("cpu")) == chosen
    assert resolve_precision("bf16", "cpu") == "bf16-mixed"  # an explicit choice is kept
    assert resolve_precision("auto", "mps") == "32-true"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu avx2 avx512_bf16 amx_bf16 amx_tile", "amx_bf16"),
        ("fpu avx512f avx512_bf16", "avx512_bf16"),
        ("fpu avx2 avx512f amx_tile amx_int8", None),
        (None, None),
    ],
)
def test_flags_of_the_cpu_are_read(flags: str | None, found: str | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    if flags:
        file.write_text(f"model name\t: A\nflags\t\t: {flags}\n")
    assert cpu_flag(file) == found


@pytest.mark.parametrize("name", ["bf16-mixed", "bf16-true", "32-true"])
@pytest.mark.parametrize("flag", ["avx512_bf16", None])
def test_slow_precision_is_reported(
    name: str, flag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_flag", lambda: flag)
    warning = slow_precision(name, "cpu", "--precision")
    if flag or name == "32-true":
        assert warning is None
        return
    reason = "this CPU does not multiply bf16 natively; auto or 32-true is faster"
    assert warning == f"--precision {name} is slow: {reason}"


@pytest.mark.parametrize("is_native", [True, False])
def test_capability_of_a_gpu_is_read(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: is_native)
    assert resolve_precision("auto", "cuda:1") == ("bf16-mixed" if is_native else "32-true")
    assert (slow_precision("bf16-mixed", "cuda", "--precision") is None) == is_native


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match="--precision must be one of"):
        resolve_precision("fp7", "cpu", "--precision")
