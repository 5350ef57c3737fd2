from typing import Any

import pytest
import torch

from fourfold.generation import GenerationDefaults, beam_search, generate
from fourfold.models import CausalLM, EncoderDecoder, RecurrentLM, RecurrentLMConfig


def test_old_names_are_accepted_with_a_warning(
    causal_lm: CausalLM, translator: EncoderDecoder
) -> None:
    ids = torch.randint(3, 13, (2, 4))
    old: dict[str, Any] = {"max_new": 3}
    with pytest.warns(DeprecationWarning, match="max_new is now called max_new_tokens") as warned:
        found = generate(causal_lm, ids, **old)
    assert warned[0].filename == __file__
    assert torch.equal(found, generate(causal_lm, ids, max_new_tokens=3))
    old = {"beam": 2, "max_len": 5}
    with pytest.warns(DeprecationWarning, match="until fourfold 0.4"):
        found, _ = beam_search(translator, ids, **old)
    assert torch.equal(found, beam_search(translator, ids, num_beams=2, max_new_tokens=5)[0])
    both: dict[str, Any] = {"beam": 2, "num_beams": 2}
    with (
        pytest.warns(DeprecationWarning, match="beam"),
        pytest.raises(TypeError, match="give only num_beams"),
    ):
        beam_search(translator, ids, **both)


def test_options_that_are_none_are_those_of_the_model(
    causal_lm: CausalLM, translator: EncoderDecoder
) -> None:
    ids = torch.randint(3, 13, (3, 4))
    own = {"bos_id": 1, "eos_id": 2, "pad_id": 0}
    translator.generation_defaults = GenerationDefaults(
        **own, num_beams=3, length_penalty=2.0, length_penalty_type="power", max_new_tokens=7
    )
    stored, scores = beam_search(translator, ids)
    translator.generation_defaults = GenerationDefaults(**own)
    given, again = beam_search(translator, ids, 3, 2.0, "power", max_new_tokens=7)
    assert torch.equal(stored, given)
    assert torch.equal(scores, again)
    plain, scores = beam_search(translator, ids)
    given, again = beam_search(translator, ids, 4, 0.6, "gnmt")
    assert torch.equal(plain, given)
    assert torch.equal(scores, again)
    assert not torch.equal(scores, beam_search(translator, ids, 3, 2.0, "power")[1])

    causal_lm.generation_defaults = GenerationDefaults(
        temperature=1.5, top_k=4, top_p=0.9, max_new_tokens=20
    )
    sampled = generate(causal_lm, ids, seed=1)
    greedy = generate(causal_lm, ids, temperature=0.0)
    causal_lm.generation_defaults = None
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "seed": 1}
    assert torch.equal(sampled, generate(causal_lm, ids, 20, **options))
    assert torch.equal(greedy, generate(causal_lm, ids, 20))
    assert not torch.equal(sampled, greedy)


def test_a_continuation_has_at_most_fifty_tokens_by_default(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, 13, (2, 4))
    assert generate(causal_lm, ids, eos_id=[]).shape[1] == 41  # max_len 40 and an unread token
    endless = RecurrentLM(RecurrentLMConfig(d_model=8, hidden_size=12, vocab_size=13)).eval()
    assert generate(endless, ids, eos_id=[]).shape[1] == 54
