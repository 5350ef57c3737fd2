"""Subprocesses that run one contender each, so that contenders share no caches or allocators.

A child process receives a job as JSON, builds its contender, runs the step once, and then once for
each line that it reads from its standard input.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from fourfold.callbacks.runtime.malloc import disable_malloc_trim
from fourfold.errors import InputError
from fourfold.reproduce.interleaved_timing import Call, wait
from scripts.benchmarks.contenders import evaluation_step, training_step
from scripts.benchmarks.peers.registry import PeerUnavailable, build_contender
from scripts.benchmarks.workloads import FOURFOLD, Settings, Shape, make_batch

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"train": training_step, "evaluate": evaluation_step}
# Number of steps of a call, by device. On a GPU, the host enqueues the operations of several steps,
# as in a training, before it waits for them.
STEPS_PER_CALL = {"cpu": 1, "cuda": 5}
SETTLE_SECONDS = 0.01  # after a step, its threads may still spin for a moment


def module_command(module: str, job: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `subprocess` that run a module of the benchmarks with a job."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "args": [sys.executable, "-m", f"scripts.benchmarks.{module}", json.dumps(job)],
        "env": {**os.environ, "PYTHONPATH": path},
        "text": True,
    }


class Worker:
    """A contender in a subprocess; calling it runs the steps of `STEPS_PER_CALL`.

    The constructor starts the subprocess. `wait`, which sets `n_parameters`, must return before the
    first call. A call sets `peak`, the peak memory on a GPU in bytes.
    """

    def __init__(
        self,
        workload: str,
        contender: str,
        family: str,
        shape: Shape,
        settings: Settings,
        *,
        compile: bool,
    ) -> None:
        job = {"workload": workload, "contender": contender, "family": family, "compile": compile}
        job |= {"shape": asdict(shape), "settings": asdict(settings)}
        self._process = subprocess.Popen(
            **module_command("workers", job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.n_parameters = 0
        self.peak = 0

    def wait(self) -> None:
        """Wait until the first step has ended; PeerUnavailable if the peer fails."""
        reply = self._read_reply()
        if "unavailable" in reply:
            raise PeerUnavailable(reply["unavailable"])
        self.n_parameters = reply["n_parameters"]

    def __call__(self) -> None:
        """Run the steps of a call and wait for their end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.peak = self._read_reply()["peak"]

    def close(self) -> None:
        """Kill the subprocess."""
        self._process.kill()
        self._process.communicate()

    def _read_reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise PeerUnavailable(
                "out of memory" if code == -9 else f"failed with exit code {code}"
            )
        time.sleep(SETTLE_SECONDS)
        return dict(json.loads(line))


@contextmanager
def worker_processes() -> Iterator[list[Worker]]:
    """Yield a list for workers, which are closed at the end of the block."""
    workers: list[Worker] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def main(job: dict[str, Any], replies: IO[str]) -> int:
    """Serve the steps of one contender until standard input is closed."""
    settings = Settings.from_json(job["settings"])
    try:
        step, n_parameters = make_step(job, Shape(**job["shape"]), settings)
    except (PeerUnavailable, InputError) as error:
        print(json.dumps({"unavailable": str(error)}), file=replies, flush=True)
        return 0
    print(json.dumps({"n_parameters": n_parameters}), file=replies, flush=True)
    device = torch.device(settings.device)
    for _ in sys.stdin:
        for _ in range(STEPS_PER_CALL[device.type]):
            step()
        wait(device)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        print(json.dumps({"peak": peak}), file=replies, flush=True)
    return 0


def make_step(job: dict[str, Any], shape: Shape, settings: Settings) -> tuple[Call, int]:
    """Return a step that has run once, and the number of trained parameters."""
    device = torch.device(settings.device)
    name: str = job["contender"]
    family: str = job["family"]
    torch.set_num_threads(settings.threads)
    if name == FOURFOLD and device.type == "cpu":
        disable_malloc_trim()  # as `fourfold fit` does
    torch.manual_seed(0)
    batch = make_batch(family, shape, device)
    contender = build_contender(name, family, shape, settings)
    make = STEPS[job["workload"]]
    step = make(contender, batch, settings.precision, device, compile=job["compile"])
    run_once(step, name)
    return step, contender.n_parameters


def run_once(step: Call, contender: str) -> None:
    """Run a step for the first time; the error of a peer becomes PeerUnavailable."""
    try:
        step()
    except Exception as error:  # peers raise many classes
        if contender == FOURFOLD:
            raise
        first_line = (str(error).strip().splitlines() or [""])[0][:100]
        raise PeerUnavailable(f"failed: {type(error).__name__}: {first_line}") from error


if __name__ == "__main__":
    replies_ = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a peer must not mix with the replies
    sys.exit(main(json.loads(sys.argv[1]), replies_))
