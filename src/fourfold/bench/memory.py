"""Peak memory of a training step, each way in a process of its own.

That process is `python -m fourfold.bench.memory` with a job in JSON. On a CPU what is counted is
the most that was resident, less what was before the model was built: after a step of a tiny model,
so that the libraries' own buffers are there already.
"""

import json
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fourfold.bench.batches import draw
from fourfold.bench.build import build
from fourfold.bench.shapes import OURS, SIZES, Settings, Shape
from fourfold.bench.turns import settings_of
from fourfold.bench.ways import training
from fourfold.callbacks.allocator import keep_freed_memory

STEPS = 2  # the second has the optimizer's state from its beginning
PAGES = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
ROOM = 0.9  # the share of the memory that is free which a child may take


class NotMeasured(Exception):
    """There is no number; the message says why."""


def peak_memory(way: str, family: str, shape: Shape, settings: Settings) -> int:
    """Bytes that training takes at most.

    Raises:
        NotMeasured: It did not fit, was over its budget of time, or failed.
    """
    job = {"way": way, "family": family, "shape": asdict(shape), "settings": asdict(settings)}
    command = [sys.executable, "-m", "fourfold.bench.memory", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=settings.budget)
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"over {settings.budget:g} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return int(lines[-1])
    complaint = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode == -9 or "memory" in complaint.lower():
        raise NotMeasured("does not fit")
    raise NotMeasured(f"failed: {complaint[:100]}")


def main(job: dict[str, Any]) -> int:
    """Train a little, and print how many bytes that took."""
    settings, shape = settings_of(job["settings"]), Shape(**job["shape"])
    device = torch.device(settings.device)
    torch.set_num_threads(settings.threads)
    if device.type == "cpu":
        _limit()
        if job["way"] == OURS:
            keep_freed_memory()  # as `fourfold fit` does
    _train(job["way"], job["family"], SIZES["tiny"][job["family"]], settings)
    before = _begin(device)
    _train(job["way"], job["family"], shape, settings)
    print(_peak(device) - before, flush=True)
    return 0


def _train(way: str, family: str, shape: Shape, settings: Settings) -> None:
    device = torch.device(settings.device)
    batch = draw(family, shape, device)
    step = training(build(way, family, shape, settings), [batch], settings.precision, device)
    for _ in range(STEPS):
        step()


def _begin(device: torch.device) -> int:
    """Forget the peak so far, and say what is taken now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        PAGES[1].write_text("5")  # Linux: the peak starts anew
    except OSError:  # another system, or it is not allowed
        return _peak(device)
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if PAGES[0].exists():
        return _status("VmHWM")  # ru_maxrss would count what the parent had when it forked
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str, file: Path = PAGES[0]) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])


def _limit() -> None:
    """Let an allocation fail before the machine stops somebody else's process."""
    if PAGES[2].exists():
        most = _status("VmData") + int(ROOM * _status("MemAvailable", PAGES[2]))
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
