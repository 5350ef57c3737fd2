"""Cache of beam search: its entries are shared by the beams and never moved."""

import sys

import pytest
import torch

import fourfold
from fourfold.core.kv_cache import KVCache
from fourfold.generation.caches import BeamCache, beam_cache
from fourfold.models import T5, CausalLM, CausalLMConfig, EncoderDecoder, EncoderDecoderConfig
from fourfold.models.encoder_decoder.t5 import T5Config
from tests.fixtures.tiny_models import LANGUAGE, V

PROMPT = 9


def test_prompt_is_stored_once_for_all_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BeamCache] = []
    module = sys.modules["fourfold.generation.beam_search"]

    def make_cache(model: object) -> BeamCache:
        made.append(BeamCache())
        return made[0]

    monkeypatch.setattr(module, "beam_cache", make_cache)
    model = CausalLM(CausalLMConfig(**LANGUAGE | {"max_len": 40})).eval()
    ids = torch.randint(3, V, (2, PROMPT))
    fourfold.beam_search(model, ids, num_beams=3, max_new_tokens=4, eos_id=V - 1)
    (cache,) = made
    keys, values = cache.layer(0).buffers
    assert len(keys) == len(values) == cache.n_sequences  # those that have not ended
    assert cache.length == PROMPT + 3 * 3  # the last tokens are not inputs
    assert cache.keys.shape == (3 * cache.n_sequences, cache.length)
    assert (cache.keys.sum(1) == PROMPT + 3).all()  # its own ancestors


def test_reorder_does_not_move_keys() -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**LANGUAGE)).eval()
    cache = BeamCache()
    with torch.inference_mode():
        memory = model.encode(torch.randint(3, V, (2, 4)))
        model.decode(torch.ones(2, 1, dtype=torch.long), memory, cache=cache)
        cache.reorder(torch.tensor([0, 0, 1, 1]), torch.arange(2))
        model.decode(torch.randint(3, V, (4, 1)), memory, cache=cache)
        keys = cache.layer(0).buffers[0]
        cache.reorder(torch.tensor([1, 0, 2, 2]), torch.arange(2))
        assert cache.layer(0).buffers[0] is keys
        assert cache.keys.int().tolist() == [[1, 0, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]]
        cache.reorder(torch.tensor([2, 3]))  # the first sequence has ended
    # Entries beyond the length are uninitialized.
    length = cache.layer(0).length
    assert torch.equal(cache.layer(0).buffers[0][:, :, :length], keys[1:, :, :length])
    assert cache.keys.int().tolist() == [[1, 1, 0], [1, 1, 0]]


def test_relative_positions_need_a_plain_cache() -> None:
    small = {key: value for key, value in LANGUAGE.items() if key in T5Config.__dataclass_fields__}
    with torch.device("meta"):
        assert type(beam_cache(T5(T5Config(**small)))) is KVCache
        assert type(beam_cache(CausalLM(CausalLMConfig(**LANGUAGE)))) is BeamCache
