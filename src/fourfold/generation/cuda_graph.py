"""GraphStep: decoding step as a CUDA graph, which launches hundreds of small kernels at once.

A graph repeats the same work on the same memory. The graph therefore uses a `StaticCache`, and
computes all rows, including the rows that have ended.

Shapes: B rows, N rows that have not ended, T prompt tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.generation.caches import StaticCache
from fourfold.generation.step import CausalStep

MIN_NEW_TOKENS = 16  # number of tokens that compensates for the time of capturing
WARMUP_RUNS = 2  # libraries allocate and choose algorithms in these, which a capture cannot contain


class GraphStep:
    """Decoding step that runs a `CausalStep` as a CUDA graph.

    The first call runs `step` on the prompts. The second call captures `step` in a CUDA graph. This
    call and all later calls replay the graph. Rows may end, but must not be reordered.

    Args:
        step: A `CausalStep` that has a cache and has not been called yet.
        capacity: Maximum number of tokens per row, prompt included.
    """

    def __init__(self, step: CausalStep, capacity: int) -> None:
        self._step = step
        self._capacity = capacity
        self._replay: Callable[[], Tensor] | None = None
        self._ids: Tensor  # (B, 1) last tokens of all rows, set by the second call
        self._active: Tensor | slice = slice(None)  # rows that have not ended, (N,) or all

    def __call__(self, ids: Tensor) -> Tensor:
        """Return logits (N, V) of the next token.

        Args:
            ids: Prompts (N, T) in the first call, later one more token per row, (N, 1).
        """
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
        """Let later calls return the logits of `rows` only; the graph still computes all rows.

        Args:
            rows: (N,) int64, ascending indices of the rows to keep, counted among the rows that the
                last call returned.
        """
        if self._replay is None:
            self._step.reorder(rows)
        else:
            self._active = rows if isinstance(self._active, slice) else self._active[rows]


def is_worth_capturing(device: torch.device, new_tokens: int) -> bool:
    """Return True if a CUDA graph works on `device` and saves time for `new_tokens` new tokens."""
    # Autocast caches the casts of weights outside of a graph, so a replay would miss them.
    autocast = torch.is_autocast_enabled("cuda")
    return device.type == "cuda" and new_tokens >= MIN_NEW_TOKENS and not autocast


def capture(step: CausalStep, cache: StaticCache, ids: Tensor) -> Callable[[], Tensor]:
    """Capture a step as a CUDA graph.

    The tokens in the cache are the same before and after the call.

    Args:
        step: Step to capture, which uses `cache`.
        cache: Cache of the step.
        ids: Last tokens (B, 1). To pass other tokens to a replay, copy the tokens into `ids` first.

    Returns:
        Function that replays the graph and returns the logits (B, V).
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
