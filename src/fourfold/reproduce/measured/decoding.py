"""Time and memory of decoding by position, for transformers and recurrent language models.

A position is the number of tokens before the generated token. The cache of a transformer holds keys
and values. The cache of a recurrent model holds its state.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fourfold import models
from fourfold.generation.step import CausalStep, decoding_mode
from fourfold.reproduce.interleaved_timing import interleave

POSITIONS = (16, 64, 256, 1024, 4096)
N_TOKENS = 8  # decoded in each measurement
WARMUP_ROUNDS = 1

Round = Mapping[str, Mapping[str, float]]  # seconds by position (as text) and measurement


def build(setup: Mapping[str, Any]) -> Any:
    """Build a `model` of `fourfold.models` with its `config` and seed 0, in evaluation mode."""
    name = setup["model"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(models, name)(getattr(models, f"{name}Config")(**setup["config"])).eval()


def filled_cache(model: Any, position: int) -> Any:
    """Return a cache of a causal LM that has read the first `position` tokens of one sequence."""
    cache = model.new_cache()
    model.hidden(_tokens(model, position), cache=cache)
    return cache


def _tokens(model: Any, n: int) -> Tensor:
    """Return token ids (1, n) int64: 0, 1, 2 and so on, modulo the size of the vocabulary."""
    return torch.arange(n)[None] % model.config.vocab_size


def cache_bytes(setup: Mapping[str, Any], position: int) -> int:
    """Count the bytes that the cache of a causal LM in fp32 holds for one sequence.

    The unused part of a buffer that was allocated for later tokens is not counted.
    """
    model = build(setup)
    with torch.inference_mode():
        cache = filled_cache(model, position)
    if model.is_recurrent:
        return sum(part.nbytes for part in cache.state)
    return sum(x[:, :, : layer.length].nbytes for layer in cache.layers for x in layer.buffers)


def measure_decoding(
    setup: Mapping[str, Any], rounds: int, positions: Sequence[int] = POSITIONS
) -> Sequence[Round]:
    """Time the greedy decoding of `N_TOKENS` tokens of one sequence from several positions.

    The result has, for each round, the seconds per token by position (as text), as "token".
    """
    model = build(setup)
    with decoding_mode(model) as model:
        # Each measurement begins at the same position, and so needs a cache of its own.
        caches = {
            position: [deepcopy(cache) for _ in range(WARMUP_ROUNDS + rounds)]
            for position in positions
            if (cache := filled_cache(model, position))
        }
        calls = {str(p): partial(_decode, model, found) for p, found in caches.items()}
        seconds = interleave(calls, rounds, warm=WARMUP_ROUNDS)
    return [{p: {"token": s[i] / N_TOKENS} for p, s in seconds.items()} for i in range(rounds)]


def _decode(model: Any, caches: list[Any]) -> None:
    """Decode `N_TOKENS` tokens greedily; the cache is removed from the end of the list `caches`."""
    step = CausalStep(model, None, caches.pop())
    token = _tokens(model, 1)
    for _ in range(N_TOKENS):
        token = step(token).argmax(dim=-1, keepdim=True)


def growth(rounds: Sequence[Round], position: int) -> list[float | str]:
    """Return the time per token at a position, divided by that at the first position, per round."""
    return [times[str(position)]["token"] / next(iter(times.values()))["token"] for times in rounds]
