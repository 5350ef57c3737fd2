"""Benchmarks of peak memory, and of time and memory of a training step of growing size.

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
from scripts.benchmarks.measurements import Rounds
from scripts.benchmarks.peers.registry import (
    PeerUnavailable,
    build_contender,
    check_available,
    peers_with,
)
from scripts.benchmarks.train_steps import (
    MS_PER_STEP,
    Measurement,
    relative_to_fourfold,
    start_workers,
)
from scripts.benchmarks.workers import STEPS_PER_CALL, module_command, worker_processes
from scripts.benchmarks.workloads import (
    FOURFOLD,
    GROWTH_AXES,
    GROWTH_VALUES,
    SIZES,
    Settings,
    Shape,
    make_batch,
)

N_STEPS = 2  # the optimizer allocates its state in the first step
MAX_FRACTION = 0.9  # of the available memory, which the subprocess may allocate
PROC_STATUS = Path("/proc/self/status")
PROC_CLEAR_REFS = Path("/proc/self/clear_refs")
PROC_MEMINFO = Path("/proc/meminfo")


class MeasurementFailed(Exception):
    """A measurement has no result; the message states the reason."""


def measure_memory(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure the peak memory of training, contender by contender."""
    names = [FOURFOLD, *peers_with(family, settings.peers)]
    yield from _measure_peaks(Measurement(workload, family, "", "MiB"), names, shape, settings)


def measure_growth(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure memory and time along each axis, until a contender fails or exceeds the limits."""
    for axis in settings.growth_axes:
        names = [FOURFOLD, *peers_with(family, settings.peers)]
        for value in GROWTH_VALUES[settings.size][axis]:
            grown = replace(shape, **GROWTH_AXES[axis](value))
            template = Measurement(workload, family, "", "MiB", axis, axis_value=value)
            remaining = []
            # Memory comes first: a contender that needs too much of it only ends its subprocess.
            for measurement in _measure_peaks(template, names, grown, settings):
                if measurement.values:
                    remaining.append(measurement.contender)
                yield measurement
            names = remaining
            if not names:
                break
            yield from _measure_time(replace(template, unit=MS_PER_STEP), names, grown, settings)


def _measure_peaks(
    template: Measurement, names: list[str], shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    reference: int | None = None
    for name in names:
        try:
            if name != FOURFOLD:
                check_available(name, settings)
            where = f"{template.case} {template.axis_value or ''}".strip()
            title = ", ".join(filter(None, (template.family, where, name)))
            print(f"{template.workload}: {title}, measuring memory", file=sys.stderr, flush=True)
            peak = peak_memory(name, template.family, shape, settings)
        except (PeerUnavailable, MeasurementFailed) as error:
            yield replace(template, contender=name, note=str(error))
            continue
        reference = peak if name == FOURFOLD else reference
        relative = [] if reference is None else [peak / reference]
        yield replace(template, contender=name, values=[peak / 2**20], ratios=relative)


def _measure_time(
    template: Measurement, names: list[str], shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    device = torch.device(settings.device)
    uncompiled = replace(settings, compile=False)
    with worker_processes() as workers:
        started, _ = start_workers("train", template.family, shape, uncompiled, names, workers)
        if not started:
            return
        title = f"{template.workload}: {template.family}, {template.case} {template.axis_value}"
        rounds = Rounds(title, started, settings.rounds, 1, device)
    seconds = rounds.seconds
    relative = relative_to_fourfold(seconds) if FOURFOLD in seconds else {}
    for name, values in seconds.items():
        yield replace(
            template,
            contender=name,
            values=[1000 * value / STEPS_PER_CALL[device.type] for value in values],
            ratios=relative.get(name, []),
            n_parameters=started[name].n_parameters,
        )
    rounds.end()


def peak_memory(contender: str, family: str, shape: Shape, settings: Settings) -> int:
    """Return the peak memory of training in bytes, or raise MeasurementFailed."""
    job = {"contender": contender, "family": family}
    job |= {"shape": asdict(shape), "settings": asdict(settings)}
    command = module_command("memory", job)
    try:
        done = subprocess.run(**command, capture_output=True, timeout=settings.time_limit)
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"exceeds {settings.time_limit:g} s") from error
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
    if device.type == "cpu":
        _limit_memory()
        if contender == FOURFOLD:
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
        PROC_CLEAR_REFS.write_text("5")  # Linux: resets VmHWM
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


def _proc_bytes(name: str, file: Path = PROC_STATUS) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])


def _limit_memory() -> None:
    """Make allocations fail before the kernel kills another process for lack of memory."""
    if PROC_MEMINFO.exists():
        available = _proc_bytes("MemAvailable", PROC_MEMINFO)
        limit = _proc_bytes("VmData") + int(MAX_FRACTION * available)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
