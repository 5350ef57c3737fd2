"""Several processes as torchrun starts them, forked: none of them has to import torch again."""

import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    code: int
    out: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def torchrun_variables(rank: int, world: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
               "GROUP_RANK": 0, "MASTER_PORT": port}  # fmt: skip
    named = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}
    return {name: str(value) for name, value in {**numbers, **named}.items()}


def _child(rank: int, world: int, port: int, log: Path, function: Callable[[int], Any]) -> None:
    import torch

    os.environ.update(torchrun_variables(rank, world, port))
    torch.set_num_threads(1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    code = 1
    try:
        code = function(rank) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what is left of a process group must not hold us up


def together(
    world: int, function: Callable[[int], Any], folder: Path, timeout: float = 120
) -> list[Ended]:
    """Run `function(rank)` in each of `world` processes; how each ended, and what it printed.

    One that is still there in the end is killed, and its code is then negative.
    """
    context, port, end = multiprocessing.get_context("fork"), free_port(), time.time() + timeout
    logs = [folder / f"rank{rank}.log" for rank in range(world)]
    running = [
        context.Process(target=_child, args=(rank, world, port, logs[rank], function))
        for rank in range(world)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(max(0.0, end - time.time()))
    for process in running:
        if process.is_alive():
            process.kill()
            process.join()
    return [
        Ended(process.exitcode if process.exitcode is not None else -9, log.read_text())
        for process, log in zip(running, logs, strict=True)
    ]
