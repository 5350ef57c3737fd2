"""Ways that take turns, each in a process of its own.

So that none inherits what another has warmed or fragmented, and each has the memory allocator that
its users have. The child, `python -m fourfold.bench.turns` with a job in JSON, builds its way, runs
it once, and then once for each line that it is sent.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

import torch

from fourfold.bench.batches import draw
from fourfold.bench.build import build
from fourfold.bench.clock import Call, wait
from fourfold.bench.peers.table import Absent
from fourfold.bench.sentences import deal
from fourfold.bench.shapes import OURS, Settings, Shape
from fourfold.bench.ways import evaluation, training
from fourfold.callbacks.allocator import keep_freed_memory
from fourfold.core.errors import InputError

STEPS = {"train": training, "evaluate": evaluation, "sentences": training}
QUIET = 0.01  # seconds that a finished step's threads may still spin


class Turn:
    """A step of a way, in its process.

    Args:
        work: A key of STEPS.
        way: Ours or a peer.
        compiled: Whether it is compiled.

    Raises:
        Absent: A peer that is not here, or fails.
    """

    def __init__(
        self, work: str, way: str, family: str, shape: Shape, settings: Settings, *, compiled: bool
    ) -> None:
        job = {"work": work, "way": way, "family": family, "compiled": compiled,
               "shape": asdict(shape), "settings": asdict(settings)}  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fourfold.bench.turns", json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        ready = self._hear()
        if "absent" in ready:
            self.close()
            raise Absent(ready["absent"])
        self.parameters: int = ready["parameters"]

    def __call__(self) -> None:
        """One step, from beginning to end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._hear()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise Absent("does not fit" if code == -9 else f"failed with exit code {code}")
        time.sleep(QUIET)
        return dict(json.loads(line))


@contextmanager
def taking_turns() -> Iterator[list[Turn]]:
    """A list for turns, whose processes end with the block."""
    turns: list[Turn] = []
    try:
        yield turns
    finally:
        for turn in turns:
            turn.close()


def main(job: dict[str, Any], answers: IO[str]) -> int:
    """Serve one way until nobody asks any more."""
    settings, shape = settings_of(job["settings"]), Shape(**job["shape"])
    try:
        step, parameters = make(job, shape, settings)
    except (Absent, InputError) as why:
        print(json.dumps({"absent": str(why)}), file=answers, flush=True)
        return 0
    print(json.dumps({"parameters": parameters}), file=answers, flush=True)
    device = torch.device(settings.device)
    for _ in sys.stdin:
        step()
        wait(device)
        print("{}", file=answers, flush=True)
    return 0


def settings_of(plain: dict[str, Any]) -> Settings:
    """Settings out of JSON."""
    words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return Settings(**words)


def make(job: dict[str, Any], shape: Shape, settings: Settings) -> tuple[Call, int]:
    """A step that has run once, and how many parameters it trains."""
    device = torch.device(settings.device)
    torch.set_num_threads(settings.threads)
    if job["way"] == OURS and device.type == "cpu":
        keep_freed_memory()  # as `fourfold fit` does
    torch.manual_seed(0)
    if job["work"] == "sentences":
        batches = deal(job["way"], job["family"], shape, settings)
    else:
        batches = [draw(job["family"], shape, device)]
    built = build(job["way"], job["family"], shape, settings)
    step = STEPS[job["work"]](built, batches, settings.precision, device, compiled=job["compiled"])
    run_once(step, job["way"])
    return step, built.parameters


def run_once(step: Call, name: str) -> None:
    """See that a step works, of peers at least.

    Raises:
        Absent: What a peer complains of.
    """
    try:
        step()
    except Exception as error:  # of a peer: whatever its own code raises
        if name == OURS:
            raise
        first = (str(error).strip().splitlines() or [""])[0][:100]
        raise Absent(f"failed: {type(error).__name__}: {first}") from error


if __name__ == "__main__":
    answers_ = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    sys.exit(main(json.loads(sys.argv[1]), answers_))
