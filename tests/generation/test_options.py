"""Every option of every decoder: it changes the output in the same way on all paths, or is refused.

A path is a way to compute the same logits: without a cache, with a cache, with packed weights on a
CPU, and with the static cache of a CUDA graph.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.generation import DecodingOptions, beam_search, cuda_graph, generate
from fourfold.kernels import cpu_decoding
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
    RecurrentLM,
    RecurrentLMConfig,
)

V, WIDTH = 19, 6
SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
MODELS: dict[str, Callable[[], Any]] = {
    "causal": lambda: CausalLM(CausalLMConfig(**SIZES, vocab_size=V, max_len=40)),
    "encoder-decoder": lambda: EncoderDecoder(
        EncoderDecoderConfig(**SIZES, vocab_size=V, max_len=40, tie_embeddings="none")
    ),
    "recurrent": lambda: RecurrentLM(
        RecurrentLMConfig(d_model=12, hidden_size=16, vocab_size=V, max_len=40)
    ),
    "recurrent-encoder-decoder": lambda: RecurrentEncoderDecoder(
        RecurrentEncoderDecoderConfig(d_model=12, hidden_size=16, vocab_size=V, max_len=40)
    ),
}
PATHS = ("eager", "cached", "packed", "graph")
MASK = torch.ones(5, WIDTH, dtype=torch.bool)
MASK[1, 4:] = MASK[3, 3:] = False
# A value of each option, which differs from its default and from the value in `base_options`.
VALUES: dict[str, Any] = {
    "max_new_tokens": 2,
    "eos_id": [],
    "temperature": 1.5,
    "top_k": 2,
    "top_p": 0.2,
    "seed": 9,
    "mask": MASK,
    "src_mask": MASK,
    "bos_id": 7,
    "pad_id": 1,
    "use_cache": False,
    "suppress_tokens": [2, *range(3, 19, 2)],
    "copies": "Counter with one copy of each prompt",
    "on_tokens": lambda rows, tokens: torch.ones_like(rows, dtype=torch.bool),
    "num_beams": 1,
    "length_penalty": 3.0,
    "length_penalty_type": "none",
    "min_p": 0.6,
    "num_return_sequences": 2,
    "repetition_penalty": 3.0,
    "no_repeat_ngram_size": 1,
    "min_length": 12,
    "min_new_tokens": 6,
    "forced_bos_token_id": 7,
}
# Options without an effect: a cache only saves time, and greedy search draws no random numbers.
# The most probable token is among the top_k, top_p and min_p tokens, as in transformers.
IDLE = {
    "greedy": {"use_cache", "top_k", "top_p", "min_p", "seed", "copies"},
    "sampling": {"use_cache"},
    "beams": {"use_cache"},
}
DECODERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "greedy": (generate, {"max_new_tokens": 9, "seed": 0}),
    "sampling": (generate, {"max_new_tokens": 9, "temperature": 1.0, "seed": 0}),
    "beams": (beam_search, {"max_new_tokens": 9, "num_beams": 3}),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    """A model whose next token depends on the previous tokens."""
    torch.manual_seed(1)
    model = MODELS[request.param]()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.6)
    return model.eval()


def options_of(function: Callable[..., Any]) -> list[str]:
    *names, decoding = list(inspect.signature(function).parameters)[2:]
    assert decoding == "decoding"
    return [*names, *DecodingOptions.__annotations__]


def test_every_option_has_a_value() -> None:
    assert {*options_of(generate), *options_of(beam_search)} == set(VALUES)


def use_path(path: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(cpu_decoding, "CACHED_BYTES", 0 if path == "packed" else 2**40)
    monkeypatch.setattr(cpu_decoding, "MIN_MATRIX_ELEMENTS", 1)
    monkeypatch.setattr(cuda_graph, "is_worth_capturing", lambda *_: path == "graph")
    monkeypatch.setattr(cuda_graph, "capture", lambda step, cache, ids: lambda: step(ids))
    return {"use_cache": False} if path == "eager" else {}


def as_tuple(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else found


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(
        x.shape == y.shape and torch.allclose(x, y, atol=1e-3) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_path_ignores_an_option(
    decoder: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, base = DECODERS[decoder]
    ids = torch.randint(3, V, (5, WIDTH), generator=torch.Generator().manual_seed(2))
    is_seq2seq = hasattr(model, "decode")
    base = {**base, "bos_id": 2, "pad_id": 0}
    columns = slice(1, None) if is_seq2seq else slice(WIDTH, None)
    free = as_tuple(function(model, ids, **base, eos_id=[]))[0][:, columns].tolist()

    def lengths(ends: tuple[int, ...]) -> set[int]:
        return {next((n for n, x in enumerate(row) if x in ends), 9) for row in free}

    # Two tokens that end the rows at as many different lengths as possible.
    base["eos_id"] = max(combinations(range(V), 2), key=lambda ends: len(lengths(ends)))
    assert len(lengths(base["eos_id"])) > 2

    def run(path: str, **changes: Any) -> tuple[Tensor, ...] | str:
        options = base | use_path(path, monkeypatch) | changes
        if "copies" in options:
            options["copies"] = Counter(tuple(row) for row in ids.tolist())
        found = attempt(lambda: function(model, ids, **options))
        return found if isinstance(found, str) else as_tuple(found)

    for name in (None, *options_of(function)):
        changes = {} if name is None else {name: VALUES[name]}
        plain, expected = run("cached"), run("cached", **changes)
        for path in PATHS:
            if path == "graph" and decoder == "beams":
                continue
            found = run(path, **changes)
            if isinstance(expected, str) or isinstance(found, str):
                assert found == expected, (path, name)
            else:
                assert same(found, expected), (path, name)
        if isinstance(expected, str):
            assert (name, expected.split()[0]) == (name, name), expected
            continue
        assert not isinstance(plain, str)
        is_idle = name in (None, *IDLE[decoder])
        is_idle |= name in ("bos_id", "forced_bos_token_id") and not is_seq2seq
        assert same(plain, expected) == is_idle, name


def attempt(decode: Callable[[], Tensor]) -> Tensor | str:
    """Return the result of a decoder, or the message with which it refuses its arguments."""
    try:
        return decode()
    except InputError as error:
        return str(error)


def test_beams_of_one_treat_options_as_greedy_search_does(model: Any) -> None:
    ids = torch.randint(3, V, (5, WIDTH), generator=torch.Generator().manual_seed(2))
    base: dict[str, Any] = {"bos_id": 2, "pad_id": 0, "eos_id": [5, 7]}
    names = {"src_mask": "mask"}
    n_refused = 0
    own = {"num_beams", "num_return_sequences", "length_penalty", "length_penalty_type"}
    for name in set(options_of(beam_search)) - own:
        options, other = base | {"max_new_tokens": 9, name: VALUES[name]}, {}
        for key, value in options.items():
            other[names.get(key, key)] = value
        found = attempt(lambda: beam_search(model, ids, 1, **options)[0])  # noqa: B023
        greedy = attempt(lambda: generate(model, ids, **other))  # noqa: B023
        if isinstance(greedy, str):
            assert found == greedy.replace("mask", "src_mask")
            n_refused += 1
        else:
            assert isinstance(found, Tensor)
            assert torch.equal(found, greedy), name
    assert n_refused <= 1


def test_every_end_token_ends_a_row(model: Any) -> None:
    """Compared with a run without end tokens, which is cut at the first of them."""
    ids = torch.randint(3, V, (5, WIDTH), generator=torch.Generator().manual_seed(3))
    start = 1 if hasattr(model, "decode") else WIDTH
    options: dict[str, Any] = {"bos_id": 2, "pad_id": 0, "max_new_tokens": 12}
    free = generate(model, ids, **options, eos_id=[])[:, start:].tolist()
    ends = [free[0][3], free[1][5], free[2][1]]
    found = generate(model, ids, **options, eos_id=ends)[:, start:].tolist()
    cut = [row[: next((i + 1 for i, x in enumerate(row) if x in ends), 12)] for row in free]
    assert [row[: len(short)] for row, short in zip(found, cut, strict=True)] == cut
    assert len({len(row) for row in cut}) > 1
    everything = beam_search(model, ids, 3, bos_id=2, max_new_tokens=5, eos_id=list(range(V)))[0]
    assert everything.shape[1] == start + 1
