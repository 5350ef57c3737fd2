"""Benchmark of the peak memory of training steps.

Memory is measured in a subprocess for each contender. On a CPU it is the peak of resident memory
minus the resident memory before the model is built. A step of a tiny model before that allocates
the buffers of the libraries, so that they are not counted.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fourfold.callbacks.runtime.malloc import disable_malloc_trim
from scripts.benchmarks.contenders import training_step
from scripts.benchmarks.peers.registry import (
    PeerUnavailable,
    build_contender,
    check_available,
    peers_with,
)
from scripts.benchmarks.train_steps import Measurement
from scripts.benchmarks.workers import module_command
from scripts.benchmarks.workloads import FOURFOLD, SIZES, Settings, Shape, make_batch

N_STEPS = 2  # the optimizer allocates its state in the first step
PROC_STATUS = Path("/proc/self/status")
PROC_CLEAR_REFS = Path("/proc/self/clear_refs")


class MeasurementFailed(Exception):
    """A measurement has no result; the message states the reason."""


def measure_memory(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure the peak memory of training, contender by contender."""
    template = Measurement(workload, family, "", "MiB")
    reference: int | None = None
    for name in (FOURFOLD, *peers_with(family, settings.peers)):
        try:
            if name != FOURFOLD:
                check_available(name, settings)
            print(f"{workload}: {family}, {name}, measuring memory", file=sys.stderr, flush=True)
            peak = peak_memory(name, family, shape, settings)
        except (PeerUnavailable, MeasurementFailed) as error:
            yield replace(template, contender=name, note=str(error))
            continue
        reference = peak if name == FOURFOLD else reference
        relative = [] if reference is None else [peak / reference]
        yield replace(template, contender=name, values=[peak / 2**20], ratios=relative)


def peak_memory(contender: str, family: str, shape: Shape, settings: Settings) -> int:
    """Return the peak memory of training in bytes, or raise MeasurementFailed."""
    job = {"contender": contender, "family": family}
    job |= {"shape": asdict(shape), "settings": asdict(settings)}
    command = module_command("memory", job)
    done = subprocess.run(**command, capture_output=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return int(lines[-1])
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == -9 or "memory" in message.lower():
        raise MeasurementFailed("out of memory")
    raise MeasurementFailed(f"failed: {message[:100]}")


def main(job: dict[str, Any]) -> int:
    """Train a few steps and print the peak memory in bytes."""
    settings = Settings.from_json(job["settings"])
    contender: str = job["contender"]
    family: str = job["family"]
    device = torch.device(settings.device)
    torch.set_num_threads(settings.threads)
    if device.type == "cpu" and contender == FOURFOLD:
        disable_malloc_trim()  # as `fourfold fit` does
    _train(contender, family, SIZES["tiny"][family], settings)
    peak = peak_of(partial(_train, contender, family, Shape(**job["shape"]), settings), device)
    print(peak, flush=True)
    return 0


def peak_of(call: Callable[[], Any], device: torch.device) -> int:
    """Return how many bytes the peak of memory during a call is above the memory before it."""
    before = _reset_peak(device)
    call()
    return _peak(device) - before


def _train(contender: str, family: str, shape: Shape, settings: Settings) -> None:
    device = torch.device(settings.device)
    batch = make_batch(family, shape, device)
    built = build_contender(contender, family, shape, settings)
    step = training_step(built, batch, settings.precision, device)
    for _ in range(N_STEPS):
        step()


def _reset_peak(device: torch.device) -> int:
    """Reset the peak, and return the memory that is in use, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        PROC_CLEAR_REFS.write_text("5", encoding="utf-8")  # Linux: resets VmHWM
    except OSError:  # not Linux, or not permitted
        return _peak(device)
    return _proc_bytes("VmRSS")


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if PROC_STATUS.exists():
        return _proc_bytes("VmHWM")  # ru_maxrss would include the memory of the parent at the fork
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _proc_bytes(name: str) -> int:
    lines = PROC_STATUS.read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name + ":")).split()[1])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
