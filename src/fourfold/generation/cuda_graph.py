"""A decoding step that is recorded once and replayed: a CUDA graph.

A step of one token is a few hundred small kernels, and a GPU waits for most of them to be started.
Recorded, they are started by one call. A record repeats itself exactly, so it works on a cache of
fixed size, whose place is a tensor, and on all rows, also those that have ended.

Shapes: B rows, N of them not yet ended, T prompt tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.generation.static_cache import StaticCache
from fourfold.generation.step import CausalStep

LEAST = 16  # tokens to write that make up for the recording
WARM = 2  # runs before it, in which libraries settle what they would else do while it runs

Run = Callable[[Tensor], Tensor]


class GraphStep:
    """A `Step` like the one it is given, for decoding whose rows leave but never move.

    Args:
        step: Not called yet; with a cache.
        capacity: Tokens of a row, prompt and new ones, that are ever read.
    """

    def __init__(self, step: CausalStep, capacity: int) -> None:
        self._step, self._capacity = step, capacity
        self._replay: Run | None = None
        self._ids: Tensor | None = None  # (B, 1) the last tokens of all rows
        self._live: Tensor | None = None  # (N,) rows not yet ended; None means all

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (N, V) after ids (N, T), which are the prompts, or (N, 1)."""
        cache = self._step.cache
        if cache is None or not cache.length:
            return self._step(ids)
        if self._replay is None:
            self._ids = ids.clone()
            self._step.cache = StaticCache(cache, len(ids), self._capacity, ids.device)
            self._replay = record(self._step, self._step.cache, self._ids)
        assert self._ids is not None
        if self._live is None:
            return self._replay(self._ids.copy_(ids))
        self._ids[self._live] = ids
        return self._replay(self._ids)[self._live]

    def reorder(self, rows: Tensor) -> None:
        """Go on with `rows` alone; those that are left out are still computed."""
        if self._replay is None:
            self._step.reorder(rows)
        else:
            self._live = rows if self._live is None else self._live[rows]


def pays(device: torch.device, new: int) -> bool:
    """Whether a step is worth recording for `new` tokens."""
    # Casts of autocast are remembered outside of a graph, where a replay would not find them.
    return device.type == "cuda" and new >= LEAST and not torch.is_autocast_enabled("cuda")


def record(step: CausalStep, cache: StaticCache, ids: Tensor) -> Run:
    """The step as a graph over the memory of `ids` (B, 1); the cache is left as it was."""
    before = cache.place.clone(), cache.seen.clone()

    def rewind() -> None:
        cache.place.copy_(before[0])
        cache.seen.copy_(before[1])

    # The model may lie on another device than the current one; of its own accord a recording takes
    # a stream of the device that was current when the process made its first.
    with torch.cuda.device(ids.device):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                step(ids)
                rewind()
        torch.cuda.current_stream().wait_stream(stream)
        # What other threads do meanwhile, such as pinning memory, spoils nothing.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            logits = step(ids)

    def replay(_: Tensor) -> Tensor:
        graph.replay()
        return logits

    return replay
