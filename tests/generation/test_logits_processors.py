"""Options that change the logits, compared with loops; results do not depend on the batch."""

import math
import random
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.generation import DecodingOptions, GenerationDefaults, beam_search, generate
from fourfold.generation.logits_processors import LogitsProcessors
from fourfold.models import CausalLM, EncoderDecoder

V = 13
SPECIAL: dict[str, Any] = {"bos_id": 1, "eos_id": [2, 5], "pad_id": 0}
OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.8},
    {"no_repeat_ngram_size": 2},
    {"min_length": 9},
    {"min_new_tokens": 4},
    {"forced_bos_token_id": 7},
    {"repetition_penalty": 0.7, "no_repeat_ngram_size": 1, "min_length": 6, "suppress_tokens": [4]},
]


def plain(row: list[int], n_new: int, logits: list[float], options: dict[str, Any]) -> list[float]:
    """Change the logits after the real tokens of a row with loops, in the order of transformers."""
    found = list(logits)
    if penalty := options.get("repetition_penalty"):
        for token in set(row):
            found[token] *= penalty if found[token] < 0 else 1 / penalty
    if n := options.get("no_repeat_ngram_size"):
        seen = {tuple(row[i : i + n]) for i in range(len(row) - n + 1)}
        for token in range(V):
            if tuple([*row, token][-n:]) in seen and len(row) + 1 >= n:
                found[token] = -math.inf
    short = len(row) < options.get("min_length", 0)
    if "min_new_tokens" in options:
        short = n_new < options["min_new_tokens"]
    if short:
        found[2] = found[5] = -math.inf
    if "forced_bos_token_id" in options and len(row) == 1:
        found = [-math.inf] * V
        found[options["forced_bos_token_id"]] = 0.0
    for token in options.get("suppress_tokens", ()):
        found[token] = -math.inf
    return found


@pytest.mark.parametrize("seed", range(30))
def test_random_options_equal_loops(seed: int) -> None:
    """With padding on both sides, rows in any order, several times, and few different tokens."""
    rng = random.Random(seed)
    choices: dict[str, list[Any]] = {
        "repetition_penalty": [0.5, 1.5],
        "no_repeat_ngram_size": [1, 2, 3, 4],
        "min_length": [3, 8],
        "min_new_tokens": [0, 3],
        "forced_bos_token_id": [0, 2],
        "suppress_tokens": [[3, 12]],
    }
    options = {x: rng.choice(choices[x]) for x in rng.sample(sorted(choices), rng.randint(1, 5))}
    prompts = [[rng.randint(0, 4) for _ in range(rng.randint(1, 6))] for _ in range(5)]
    ids, real = torch.full((5, 8), 3), torch.zeros(5, 8, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        start = rng.randint(0, 8 - len(prompt))
        ids[i, start : start + len(prompt)] = torch.tensor(prompt)
        real[i, start : start + len(prompt)] = True
    stored = dict(options)
    never = stored.pop("suppress_tokens", [])
    split = {x: stored.pop(x) for x in list(stored) if rng.random() < 0.5}  # given by the caller
    defaults = GenerationDefaults(**stored)
    inputs: Any = SimpleNamespace(
        vocab_size=V, eos_ids=(2, 5), defaults=defaults, is_seq2seq=False, real=real
    )
    processors = LogitsProcessors(inputs, ids, never, split)
    for t in (0, 1, 6):
        rows = torch.tensor([rng.randrange(5) for _ in range(7)])
        new = (
            torch.tensor([[rng.randint(0, 4) for _ in range(t)] for _ in rows]).long().reshape(7, t)
        )
        logits = torch.randn(7, V, dtype=torch.float64)
        found = processors(rows, new, logits) if processors.are_used else logits
        for i, row in enumerate(rows.tolist()):
            sequence = prompts[row] + new[i].tolist()
            expected = plain(sequence, t, logits[i].tolist(), options)
            torch.testing.assert_close(found[i], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_results_do_not_depend_on_padding_or_the_batch(
    changes: dict[str, Any],
    causal_lm: CausalLM,
    translator: EncoderDecoder,
    sources: list[Tensor],
    padded: tuple[Tensor, Tensor],
) -> None:
    ids, mask = padded
    both: dict[str, Any] = {**SPECIAL, **changes, "max_new_tokens": 8}
    drawn: dict[str, Any] = {"temperature": 1.3, "seed": 4, "num_return_sequences": 3, "min_p": 0.1}
    for model in (causal_lm, translator):
        greedy = generate(model, ids, mask=mask, **both)
        samples = generate(model, ids, mask=mask, **both, **drawn)
        assert samples.shape[:2] == (4, 3)
        best, scores = beam_search(model, ids, 3, src_mask=mask, num_return_sequences=2, **both)
        for i, source in enumerate(sources):
            start = (ids.shape[1], len(source)) if model is causal_lm else (1, 1)
            row = source[None]

            def same(found: Tensor, alone: Tensor, start: tuple[int, int] = start) -> bool:
                new, own = found[..., start[0] :], alone[..., start[1] :]
                width = own.shape[-1]
                return torch.equal(new[..., :width], own) and not new[..., width:].any()

            assert same(greedy[i], generate(model, row, **both)[0])
            assert same(samples[i], generate(model, row, **both, **drawn)[0])
            # Fewer samples are the first ones.
            fewer = drawn | {"num_return_sequences": 1}
            assert same(samples[i, :1], generate(model, row, **both, **fewer))
            alone, own = beam_search(model, row, 3, num_return_sequences=2, **both)
            assert same(best[i], alone[0])
            torch.testing.assert_close(scores[i], own[0])


def test_stored_options_apply_unless_others_are_given(
    causal_lm: CausalLM, translator: EncoderDecoder
) -> None:
    ids = torch.randint(3, V, (6, 5))
    for model in (causal_lm, translator):
        for options in OPTIONS[:5]:
            model.generation_defaults = GenerationDefaults(bos_id=1, eos_id=2, pad_id=0)
            plain_result, given = generate(model, ids, 9), generate(model, ids, 9, **options)
            beams = beam_search(model, ids, 3, max_new_tokens=9, **options)
            defaults = GenerationDefaults(bos_id=1, eos_id=2, pad_id=0, **options)
            model.generation_defaults = defaults
            assert torch.equal(generate(model, ids, 9), given)
            stored = beam_search(model, ids, 3, max_new_tokens=9)
            assert torch.equal(stored[0], beams[0])
            assert torch.equal(stored[1], beams[1])
            (name,) = options
            if name != "forced_bos_token_id":
                off: Any = {name: 1.0 if name == "repetition_penalty" else 0}
                assert torch.equal(generate(model, ids, 9, **off), plain_result)


def test_stored_number_of_sequences(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, V, (2, 5))
    causal_lm.generation_defaults = GenerationDefaults(eos_id=2, num_return_sequences=3)
    assert generate(causal_lm, ids, 4, temperature=1.0).shape[:2] == (2, 3)
    assert generate(causal_lm, ids, 4).ndim == 2  # greedy search has one result
    assert beam_search(causal_lm, ids, max_new_tokens=4)[1].shape == (2, 3)
    assert beam_search(causal_lm, ids, 2, max_new_tokens=4)[1].shape == (2, 2)
    assert beam_search(causal_lm, ids, 1, max_new_tokens=4)[1].shape == (2,)


def test_every_option_can_be_stored() -> None:
    assert DecodingOptions.__annotations__.keys() <= {x.name for x in fields(GenerationDefaults)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, got 0.0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be .* finite, got inf"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be at least 0, got -1"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size must be of type int"),
        ({"min_length": -1}, "min_length must be at least 0, got -1"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0, got -1"),
        ({"forced_bos_token_id": V}, "forced_bos_token_id must be at least 0 and below 13, got 13"),
        (
            {"forced_bos_token_id": 3, "suppress_tokens": [3]},
            "forced_bos_token_id must not be in suppress_tokens",
        ),
        ({"num_return_sequences": 0}, "num_return_sequences must be at least 1, got 0"),
        ({"num_return_sequences": 9}, "num_return_sequences needs a temperature above 0"),
    ],
)
def test_invalid_options_are_rejected(
    changes: dict[str, Any], message: str, translator: EncoderDecoder
) -> None:
    ids = torch.randint(3, V, (2, 4))
    calls: list[Callable[[], Any]] = [
        lambda: generate(translator, ids, 5, **changes),
        lambda: beam_search(translator, ids, max_new_tokens=5, num_beams=4, **changes),
    ]
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()


def test_an_unknown_option_is_an_error(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, V, (2, 4))
    for name in ("repetition_penality", "num_beams", "stop_ids"):
        options: dict[str, Any] = {name: 2}
        with pytest.raises(TypeError, match=f"unexpected keyword arguments: {name}"):
            generate(causal_lm, ids, 5, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_to_choose_is_an_error(temperature: float, causal_lm: CausalLM) -> None:
    ids = torch.tensor([[3, 4, 5]])
    options: dict[str, Any] = {"no_repeat_ngram_size": 1, "temperature": temperature}
    assert generate(causal_lm, ids, 10, [], **options)[0].sort().values.tolist() == list(range(V))
    with pytest.raises(InputError, match="options of the logits leave no token to choose"):
        generate(causal_lm, ids, 11, [], **options)
    for beams in (1, 3):
        with pytest.raises(InputError, match="options of the logits leave no token to choose"):
            beam_search(causal_lm, ids, beams, eos_id=[], max_new_tokens=11, no_repeat_ngram_size=1)
