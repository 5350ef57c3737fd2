"""GraphStep: decoding step as a CUDA graph, which launches hundreds of small kernels at once.

A CUDA graph repeats the same kernels on the same memory. The graph therefore uses a `StaticCache`,
and computes all rows, including the rows of sequences that have ended. The newest graph of a model
is kept, with its memory, for the next prompts of the same shape.

Shapes: B rows, N rows that have not ended, T prompt tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fourfold.core import attention
from fourfold.core.kv_cache import KVCache
from fourfold.generation.caches import StaticCache
from fourfold.generation.step import CausalStep

MIN_NEW_TOKENS = 16  # number of tokens that compensates for the time of capturing
# Libraries allocate memory and choose algorithms in these runs, because a capture cannot.
WARMUP_RUNS = 2


class Captured(NamedTuple):
    """CUDA graph with the memory that it uses: last tokens (B, 1) of all rows, keys and values."""

    key: Any  # a result of `graph_key`
    ids: Tensor
    cache: StaticCache
    replay: Callable[[], Tensor]


# Newest graph of each model. A graph in use is not in it, so that no other thread replays it.
_KEPT: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()


class GraphStep:
    """Decoding step that runs a `CausalStep` of a model as a CUDA graph.

    The first call runs `step` on the prompts. The second call captures `step` in a CUDA graph, or
    takes the graph that an earlier `GraphStep` has kept. This call and all later calls replay the
    graph. `step` has a cache and has not been called yet, and a row has at most `capacity` tokens,
    prompt included.
    """

    def __init__(self, step: CausalStep, capacity: int, model: nn.Module) -> None:
        self._step = step
        self._capacity = capacity
        self._model = model
        self._graph: Captured | None = None
        self._active: Tensor | slice = slice(None)  # rows that have not ended, (N,) or all

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits (N, V) after prompts (N, T), in later calls after one token (N, 1)."""
        cache = self._step.cache
        if cache is None or not cache.length:
            return self._step(ids)
        if self._graph is None:
            self._graph = self._take(cache, ids)
        self._graph.ids[self._active] = ids
        return self._graph.replay()[self._active]

    def _take(self, cache: KVCache, ids: Tensor) -> Captured:
        """Take the kept graph, if it computes the same, or capture one."""
        key = graph_key(self._model, len(ids), self._capacity, ids.device)
        kept = _KEPT.pop(self._model, None)
        if kept is not None and kept.key == key:
            kept.cache.load(cache)
            self._step.cache = kept.cache
            return kept
        ids = ids.clone()
        self._step.cache = static = StaticCache(cache, len(ids), self._capacity, ids.device)
        return Captured(key, ids, static, capture(self._step, static, ids))

    def keep(self) -> None:
        """Keep the graph for the next prompts; this step must not be called again."""
        if self._graph is not None and self._graph.key is not None:
            _KEPT[self._model] = self._graph

    def reorder(self, rows: Tensor) -> None:
        """Keep the rows with ascending indices `rows` (N,) among those of the last result.

        The graph still computes all rows.
        """
        if self._graph is None:
            self._step.reorder(rows)
        else:
            self._active = rows if isinstance(self._active, slice) else self._active[rows]


def graph_key(model: nn.Module, *shape: Any) -> Any:
    """Return values on which the kernels of a graph depend; None if the graph must not be kept.

    They are the shape of the call, the addresses of the weights, the plain attributes of the
    modules and global settings. Hooks of modules would not run in a replay, so such a model has no
    key.
    """
    modules = list(model.modules())
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return None
    weights = [(x.data_ptr(), x.dtype) for x in (*model.parameters(), *model.buffers())]
    plain = bool, int, float, str
    attributes = [
        (type(module), getattr(module, "normalize", None), name, value)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, plain) or callable(value)
    ]
    settings = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    return shape, weights, attributes, settings, attention._backend.get()


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
