"""Decoding steps with rows reordered at random, compared with each row's full history."""

import pytest
import torch

from fourfold.core.kv_cache import KVCache, LayerCache
from fourfold.generation.caches import BeamCache
from fourfold.generation.step import Seq2SeqStep
from fourfold.models import EncoderDecoder, EncoderDecoderConfig
from tests.fixtures.tiny_models import LANGUAGE, V

MOVES = {
    "beams": [[0, 0, 0, 1, 1, 1], [2, 0, 1, 3, 3, 4], [0, 1, 2, 3, 4, 5]],
    "the first source ends": [[0, 0, 1, 1, 2, 2], [2, 3, 5, 4], [0, 0, 3, 2]],
    "sources change places": [[2, 2, 0, 0], [3, 2, 1, 0], [0, 0, 0, 1]],
    "unequal numbers": [[0, 0, 1, 2], [0, 3], [1, 0, 0], [2, 2, 1]],
    "all sources change places": [[1, 1, 0, 0, 2, 2], [3, 2, 0, 1, 5, 5]],
    "one row": [[1], [0, 0, 0], [2, 1]],
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("make_cache", [KVCache, BeamCache, None])
@pytest.mark.parametrize("masked", [True, False])
def test_reordered_rows_keep_their_history(
    name: str, make_cache: type[KVCache] | None, masked: bool
) -> None:
    if make_cache is BeamCache and name == "unequal numbers":
        pytest.skip("a beam is as wide for every sentence")
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**LANGUAGE)).double().eval()
    src = torch.randint(3, V, (3, 5))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    with torch.no_grad():
        step = Seq2SeqStep(model, src, mask if masked else None, make_cache and make_cache())
        seen = torch.randint(3, V, (3, 2))
        source, logits = torch.arange(3), step(seen)
        for rows in MOVES[name]:
            moved = torch.tensor(rows)
            step.reorder(moved)
            new = torch.randint(3, V, (len(rows), 1))
            source, seen = source[moved], torch.cat([seen[moved], new], dim=1)
            logits = step(new)
            for i, own in enumerate(source.tolist()):
                real = src[own : own + 1, mask[own]] if masked else src[own : own + 1]
                expected = model(real, seen[i : i + 1])[0, -1]
                torch.testing.assert_close(logits[i], expected)


def test_memory_of_all_sources_is_not_copied() -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**LANGUAGE)).eval()
    with torch.no_grad():
        step = Seq2SeqStep(model, torch.randint(3, V, (2, 4)), None, KVCache())
        step(torch.ones(2, 1, dtype=torch.long))
        step.reorder(torch.tensor([0, 0, 1, 1]))
        assert step.cache is not None
        layer: LayerCache = step.cache.layer(0)
        assert layer.memory is not None
        keys = layer.memory[0]
        assert len(keys) == 2
        step(torch.ones(4, 1, dtype=torch.long))
        step.reorder(torch.tensor([1, 0, 2, 3]))
        assert layer.memory[0] is keys
