"""GraphStep: decoding step as a CUDA graph, which launches hundreds of small kernels at once.

A CUDA graph repeats the same kernels on the same memory. The graph therefore uses a `StaticCache`,
and computes all rows, including the rows of sequences that have ended.

Shapes: B rows, N rows that have not ended, T prompt tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.generation.caches import StaticCache
from fourfold.generation.step import CausalStep

MIN_NEW_TOKENS = 16  # number of tokens that compensates for the time of capturing
# Libraries allocate memory and choose algorithms in these runs, because a capture cannot.
WARMUP_RUNS = 2


class GraphStep:
    """Decoding step that runs a `CausalStep` as a CUDA graph.

    The first call runs `step` on the prompts. The second call captures `step` in a CUDA graph. This
    call and all later calls replay the graph. `step` has a cache and has not been called yet, and a
    row has at most `capacity` tokens, prompt included.
    """

    def __init__(self, step: CausalStep, capacity: int) -> None:
        self._step = step
        self._capacity = capacity
        self._replay: Callable[[], Tensor] | None = None
        self._ids: Tensor  # (B, 1) last tokens of all rows, set by the second call
        self._active: Tensor | slice = slice(None)  # rows that have not ended, (N,) or all

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits (N, V) after prompts (N, T), in later calls after one token (N, 1)."""
        cache = self._step.cache
        if cache is None or not cache.length:
            return self._step(ids)
        if self._replay is None:
            self._ids = ids.clone()
            self._step.cache = StaticCache(cache, len(ids), self._capacity, ids.device)
            self._replay = capture(self._step, self._step.cache, self._ids)
        self._ids[self._active] = ids
        return self._replay()[self._active]

    def reorder(self, rows: Tensor) -> None:
        """Keep the rows with ascending indices `rows` (N,) among those of the last result.

        The graph still computes all rows.
        """
        if self._replay is None:
            self._step.reorder(rows)
        else:
            self._active = rows if isinstance(self._active, slice) else self._active[rows]


def is_worth_capturing(device: torch.device, new_tokens: int) -> bool:
    """Return True if a CUDA graph is supported and saves time."""
    # Autocast caches the casts of weights outside of a graph, so a replay would miss them.
    autocast = torch.is_autocast_enabled("cuda")
    return device.type == "cuda" and new_tokens >= MIN_NEW_TOKENS and not autocast


def capture(step: CausalStep, cache: StaticCache, ids: Tensor) -> Callable[[], Tensor]:
    """Capture one decoding step, and return a function that replays it for the content of `ids`.

    The capture adds no token to the cache that `step` uses. The next replay overwrites the logits
    (B, V) that the function returns.
    """
    position = cache.position.clone()
    filled = cache.filled.clone()
    # The model may be on another device than the current one. By default, a capture uses a stream
    # of the device that was current at the first capture of the process.
    with torch.cuda.device(ids.device):
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_RUNS):
                step(ids)
                cache.position.copy_(position)
                cache.filled.copy_(filled)
        torch.cuda.current_stream().wait_stream(stream)
        # In this mode, other threads may call CUDA meanwhile, for example to pin memory.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            logits = step(ids)

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
