"""CUDA graph of a decoding step, which replays its hundreds of small kernels with one launch.

A graph repeats the same work on the same memory. It therefore uses a `StaticCache`, and it computes
all rows, including those that have ended.

Shapes: B rows, N rows that have not ended, T prompt tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.generation.caches import StaticCache
from fourfold.generation.step import CausalStep

MIN_NEW_TOKENS = 16  # number of tokens that compensates for the time of capturing
WARMUP_RUNS = 2  # libraries allocate and choose algorithms in these, which a capture cannot contain

Replay = Callable[[Tensor], Tensor]


class GraphStep:
    """A `Step` that captures another one in a CUDA graph after the prompts.

    Rows may end, but must not be reordered.

    Args:
        step: A step with a cache that has not been called yet.
        capacity: Maximum number of tokens per row, prompt included.
    """

    def __init__(self, step: CausalStep, capacity: int) -> None:
        self._step = step
        self._capacity = capacity
        self._replay: Replay | None = None
        self._ids: Tensor | None = None  # (B, 1) last tokens of all rows
        self._active: Tensor | None = None  # (N,) rows that have not ended; None means all

    def __call__(self, ids: Tensor) -> Tensor:
        """Return logits (N, V) after the prompts `ids` (N, T), or after one more token (N, 1)."""
        cache = self._step.cache
        if cache is None or not cache.length:
            return self._step(ids)
        if self._replay is None:
            self._ids = ids.clone()
            self._step.cache = StaticCache(cache, len(ids), self._capacity, ids.device)
            self._replay = capture(self._step, self._step.cache, self._ids)
        assert self._ids is not None
        if self._active is None:
            return self._replay(self._ids.copy_(ids))
        self._ids[self._active] = ids
        return self._replay(self._ids)[self._active]

    def reorder(self, rows: Tensor) -> None:
        """Keep `rows`; the graph still computes the others."""
        if self._replay is None:
            self._step.reorder(rows)
        else:
            self._active = rows if self._active is None else self._active[rows]


def is_worth_capturing(device: torch.device, new_tokens: int) -> bool:
    """Return whether a graph saves time for this number of new tokens."""
    # Autocast caches the casts of weights outside of a graph, so a replay would miss them.
    autocast = torch.is_autocast_enabled("cuda")
    return device.type == "cuda" and new_tokens >= MIN_NEW_TOKENS and not autocast


def capture(step: CausalStep, cache: StaticCache, ids: Tensor) -> Replay:
    """Capture a step as a graph that reads `ids` (B, 1); the cache keeps its content."""
    position = cache.position.clone()
    filled = cache.filled.clone()

    def rewind() -> None:
        cache.position.copy_(position)
        cache.filled.copy_(filled)

    # The model may be on another device than the current one. By default, a capture uses a stream
    # of the device that was current at the first capture of the process.
    with torch.cuda.device(ids.device):
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_RUNS):
                step(ids)
                rewind()
        torch.cuda.current_stream().wait_stream(stream)
        # In this mode, other threads may call CUDA meanwhile, for example to pin memory.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            logits = step(ids)

    def replay(_: Tensor) -> Tensor:
        graph.replay()
        return logits

    return replay
