"""Memory of a process before and after tensors are freed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fourfold.callbacks.runtime import malloc

BLOCKS = """
import sys
import torch
from fourfold.callbacks.runtime.malloc import disable_malloc_trim

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept = disable_malloc_trim() if sys.argv[1] == "keep" else False
before = resident()
for _ in range(3):
    x = torch.ones(2**26, dtype=torch.uint8)
    del x
print(kept, (resident() - before) >> 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc of Linux")
def test_freed_memory_stays_in_the_process() -> None:
    growth = {}
    for setting in ("keep", "leave"):
        command = [sys.executable, "-c", BLOCKS, setting]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        kept, growth[setting] = done.stdout.split()
        if setting == "keep" and kept == "False":
            pytest.skip("needs malloc of glibc")
    assert int(growth["leave"]) < 32
    assert 60 < int(growth["keep"]) < 200


def test_other_c_libraries_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert malloc.disable_malloc_trim() is False


@pytest.mark.parametrize(("device", "kept"), [("cpu", 1), ("cuda", 0)])
def test_callback_changes_malloc_on_a_cpu_only(
    monkeypatch: pytest.MonkeyPatch, device: str, kept: int
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(malloc, "disable_malloc_trim", lambda: calls.append(None))
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=SimpleNamespace(type=device)))
    malloc.DisableMallocTrim().setup(trainer, None, "fit")  # type: ignore[arg-type]
    assert len(calls) == kept
