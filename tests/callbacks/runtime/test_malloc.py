"""Freed memory stays with the process: asked of the process itself."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fourfold.callbacks import allocator

BLOCKS = """
import sys
import torch
from fourfold.callbacks.allocator import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept = keep_freed_memory() if sys.argv[1] == "keep" else False
before = resident()
for _ in range(3):
    x = torch.ones(2**26, dtype=torch.uint8)
    del x
print(kept, (resident() - before) >> 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux")
def test_a_large_block_stays() -> None:
    grown = {}
    for way in ("keep", "leave"):
        command = [sys.executable, "-c", BLOCKS, way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        kept, grown[way] = done.stdout.split()
        if way == "keep" and kept == "False":
            pytest.skip("another malloc than glibc's")
    assert int(grown["leave"]) < 32
    assert 60 < int(grown["keep"]) < 200


def test_another_malloc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False


@pytest.mark.parametrize(("device", "kept"), [("cpu", 1), ("cuda", 0)])
def test_only_where_a_cpu_computes(monkeypatch: pytest.MonkeyPatch, device: str, kept: int) -> None:
    calls: list[None] = []
    monkeypatch.setattr(allocator, "keep_freed_memory", lambda: calls.append(None))
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=SimpleNamespace(type=device)))
    allocator.KeepFreedMemory().setup(trainer, None, "fit")  # type: ignore[arg-type]
    assert len(calls) == kept
