"""Tests that greedy search, sampling and beam search give the tokens of transformers."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import fourfold
from fourfold.generation.sampling import uniform_per_prompt
from fourfold.models import EncoderDecoder
from tests.fixtures.hf_models import make_model, padding_mask, random_ids, to_fp64

NAMES = [
    "gpt1",
    "gpt2",
    "gpt2-untied",
    "llama",
    "llama-yarn",
    "mistral",
    "qwen2-windows",
    "qwen3",
    "olmo2",
    "gemma3",
    "marian",
    "pegasus",
    "bart",
    "bart-scaled",
    "t5",
    "t5-gated-own-head",
]
EOS = 2
PAD = 1
START = 1
MAX_NEW = 11


def load_both(name: str, tmp_path: Path, eos_bias: float = 0.0) -> tuple[Any, Any]:
    """Load a model into both libraries in fp64.

    Large weights and a likely or unlikely EOS keep the logits of candidates apart.
    """
    hf_model = make_model(name)
    with torch.no_grad():
        for parameter in hf_model.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:  # not the sinusoidal table
                parameter.mul_(3.0)
        if hasattr(hf_model, "final_logits_bias"):
            hf_model.final_logits_bias[0, EOS] += eos_bias
        elif hf_model.config.is_encoder_decoder:  # without an output bias
            hf_model.get_output_embeddings().weight[EOS] *= eos_bias
    hf_model.save_pretrained(tmp_path / "theirs")
    model = fourfold.load(tmp_path / "theirs")
    return model.double(), to_fp64(hf_model)


def new_tokens(rows: torch.Tensor, start: int) -> list[list[int]]:
    """Return the new tokens of each row, up to and including EOS."""
    result = []
    for row in rows[:, start:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        result.append(row[:end])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_greedy_decoding_matches_transformers(name: str, tmp_path: Path) -> None:
    model, hf_model = load_both(name, tmp_path, 1.0)
    is_seq2seq = isinstance(model, EncoderDecoder)
    mask = padding_mask([3, 7, 5, 1, 6, 7], left=not is_seq2seq)
    x = random_ids(*mask.shape).masked_fill(~mask, PAD)
    expected = hf_model.generate(
        x,
        attention_mask=mask.long(),
        max_new_tokens=MAX_NEW,
        do_sample=False,
        num_beams=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
        **({"decoder_start_token_id": START} if is_seq2seq else {}),
    )
    actual = fourfold.generate(model, x, MAX_NEW, EOS, mask=mask, bos_id=START, pad_id=PAD)
    start = 1 if is_seq2seq else x.shape[1]
    assert new_tokens(actual, start) == new_tokens(expected, start)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_beam_search_matches_transformers(name: str, alpha: float, tmp_path: Path) -> None:
    model, hf_model = load_both(name, tmp_path, 6.0 if "bart" in name else 4.0)
    is_seq2seq = isinstance(model, EncoderDecoder)
    mask = padding_mask([3, 7, 5, 1, 6, 7, 2, 4] * 3, left=not is_seq2seq)
    x = random_ids(*mask.shape).masked_fill(~mask, PAD)
    out = hf_model.generate(
        x,
        attention_mask=mask.long(),
        max_new_tokens=MAX_NEW,
        do_sample=False,
        num_beams=4,
        length_penalty=alpha,
        early_stopping="never",
        eos_token_id=EOS,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **({"decoder_start_token_id": START} if is_seq2seq else {}),
    )
    actual, scores = fourfold.beam_search(
        model,
        x,
        4,
        alpha,
        "power",
        src_mask=mask,
        bos_id=START,
        eos_id=EOS,
        pad_id=PAD,
        max_new_tokens=MAX_NEW,
    )
    start = 1 if is_seq2seq else x.shape[1]
    expected_rows, actual_rows = new_tokens(out.sequences, start), new_tokens(actual, start)
    # Rows are comparable if both or neither ended: fourfold prefers finished hypotheses.
    comparable = [(EOS in a) == (EOS in b) for a, b in zip(actual_rows, expected_rows, strict=True)]
    close = torch.isclose(scores, out.sequences_scores.double(), rtol=1e-5, atol=1e-6).tolist()
    for actual_row, expected_row, is_close, is_comparable in zip(
        actual_rows, expected_rows, close, comparable, strict=True
    ):
        if is_comparable:
            assert actual_row == expected_row
            assert is_close
    assert sum(comparable) >= 6
    if is_seq2seq and alpha == 1.0:
        assert len({len(row) for row in actual_rows if EOS in row}) > 1


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("beam", [1, 4])
def test_suppressed_tokens_match_transformers(beam: int, name: str, tmp_path: Path) -> None:
    model, hf_model = load_both(name, tmp_path, 1.0)
    x = random_ids(6, 7)
    special = {"eos_id": EOS, "pad_id": PAD, "bos_id": START}
    start = 1 if isinstance(model, EncoderDecoder) else x.shape[1]
    plain = fourfold.generate(model, x, MAX_NEW, **special)
    unwanted = sorted(set(plain[:, start : start + 3].flatten().tolist()) - {EOS})
    out = hf_model.generate(
        x,
        attention_mask=torch.ones_like(x),
        max_new_tokens=MAX_NEW,
        do_sample=False,
        num_beams=beam,
        length_penalty=1.0,
        early_stopping="never",
        suppress_tokens=unwanted,
        eos_token_id=EOS,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **({"decoder_start_token_id": START} if start == 1 else {}),
    )
    options: Any = {**special, "suppress_tokens": unwanted}
    actual, scores = fourfold.beam_search(
        model, x, beam, 1.0, "power", max_new_tokens=MAX_NEW, **options
    )
    rows, expected = new_tokens(actual, start), new_tokens(out.sequences, start)
    comparable = [(EOS in a) == (EOS in b) for a, b in zip(rows, expected, strict=True)]
    assert sum(comparable) >= 4
    assert [a for a, same in zip(rows, comparable, strict=True) if same] == [
        b for b, same in zip(expected, comparable, strict=True) if same
    ]
    if beam > 1:
        same = torch.tensor(comparable)
        theirs = out.sequences_scores.double()[same]
        torch.testing.assert_close(scores[same], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "t5", "marian"])
@pytest.mark.parametrize("beam", [1, 3, 4])
def test_several_end_tokens_match_transformers(beam: int, name: str, tmp_path: Path) -> None:
    """The end tokens are read from the directory, as by transformers."""
    model, hf_model = load_both(name, tmp_path, 1.0)
    x = random_ids(24, 7)
    is_seq2seq = isinstance(model, EncoderDecoder)
    start = 1 if is_seq2seq else x.shape[1]
    special: dict[str, Any] = {"bos_id": START, "pad_id": PAD}
    free = fourfold.generate(model, x, MAX_NEW, **special, eos_id=[])[:, start:]
    ends = sorted({EOS, *free[:4, 3:].flatten().tolist()} - {PAD, START})[:6]
    assert len(ends) > 2
    hf_model.generation_config.update(eos_token_id=ends, pad_token_id=PAD)
    hf_model.save_pretrained(tmp_path / "ends")
    model = fourfold.load(tmp_path / "ends").double()
    assert set(model.generation_defaults.end_ids) == set(ends)
    out = hf_model.generate(
        x,
        attention_mask=torch.ones_like(x),
        max_new_tokens=MAX_NEW,
        do_sample=False,
        num_beams=beam,
        length_penalty=0.0,  # otherwise transformers prefers long hypotheses without an end
        early_stopping="never" if beam > 1 else False,
        return_dict_in_generate=True,
        output_scores=True,
        **({"decoder_start_token_id": START} if is_seq2seq else {}),
    )
    actual, scores = fourfold.beam_search(
        model, x, beam, 0.0, "power", max_new_tokens=MAX_NEW, **special
    )

    def rows(found: torch.Tensor) -> list[list[int]]:
        rows = found[:, start:].tolist()
        return [row[: next((i for i, t in enumerate(row, 1) if t in ends), None)] for row in rows]

    mine, theirs = rows(actual), rows(out.sequences)
    # fourfold prefers finished hypotheses; rows are comparable if both or neither ended.
    same = [(a[-1] in ends) == (b[-1] in ends) for a, b in zip(mine, theirs, strict=True)]
    assert sum(same) >= 16
    assert sum(row[-1] in ends and len(row) < MAX_NEW for row in mine) > 6
    pairs = [pair for pair, x in zip(zip(mine, theirs, strict=True), same, strict=True) if x]
    assert [a for a, _ in pairs] == [b for _, b in pairs]
    if beam > 1:
        chosen = torch.tensor(same)
        expected = out.sequences_scores.double()[chosen]
        torch.testing.assert_close(scores[chosen], expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(actual, fourfold.generate(model, x, MAX_NEW, **special))


def draw_options(rng: random.Random, *, is_seq2seq: bool) -> dict[str, Any]:
    """Return a random combination of options that change the logits, at least one of them."""
    choices: dict[str, list[Any]] = {
        "repetition_penalty": [0.6, 1.3, 2.5],
        "no_repeat_ngram_size": [1, 2, 3],
        "min_length": [5, 9, 12],
        "min_new_tokens": [0, 3, 8],
        "suppress_tokens": [[4, 9, 17], [EOS]],
        **({"forced_bos_token_id": [0, 5, 18]} if is_seq2seq else {}),
    }
    names = rng.sample(sorted(choices), rng.randint(1, 4))
    return {name: rng.choice(choices[name]) for name in names}


def their_options(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    special = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": MAX_NEW}
    special |= {"decoder_start_token_id": START} if isinstance(model, EncoderDecoder) else {}
    return special | options


OURS: dict[str, Any] = {"bos_id": START, "eos_id": EOS, "pad_id": PAD, "max_new_tokens": MAX_NEW}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5"])
@pytest.mark.parametrize("seed", range(5))
def test_options_of_the_logits_match_transformers(name: str, seed: int, tmp_path: Path) -> None:
    """In greedy search and beam search, also with several results of each prompt or source."""
    torch.manual_seed(seed)
    rng = random.Random(f"{name}{seed}")
    model, hf_model = load_both(name, tmp_path, 3.0)
    is_seq2seq = isinstance(model, EncoderDecoder)
    start = 1 if is_seq2seq else 7
    n_compared = 0
    for _ in range(6):
        x = random_ids(6, 7)
        options = draw_options(rng, is_seq2seq=is_seq2seq)
        theirs: Any = {"attention_mask": torch.ones_like(x), "do_sample": False}
        theirs |= their_options(model, options)
        expected = new_tokens(hf_model.generate(x, num_beams=1, **theirs), start)
        assert new_tokens(fourfold.generate(model, x, **OURS, **options), start) == expected
        one_beam, _ = fourfold.beam_search(model, x, 1, **OURS, **options)
        assert new_tokens(one_beam, start) == expected

        beams, n = rng.choice([(2, 1), (4, 1), (4, 3)])
        out = hf_model.generate(
            x,
            num_beams=beams,
            num_return_sequences=n,
            length_penalty=0.0,
            early_stopping="never",
            return_dict_in_generate=True,
            output_scores=True,
            **theirs,
        )
        found, scores = fourfold.beam_search(
            model, x, beams, 0.0, "power", num_return_sequences=n, **OURS, **options
        )
        assert scores.shape == ((6,) if n == 1 else (6, n))
        mine = new_tokens(found.reshape(6 * n, -1), start)
        rows = new_tokens(out.sequences, start)
        # fourfold prefers finished hypotheses, so comparable are sources with all or no rows ended.
        for i in range(0, 6 * n, n):
            both = mine[i : i + n], rows[i : i + n]
            if len({EOS in row for part in both for row in part}) == 1:
                n_compared += n
                assert both[0] == both[1], options
                ours = scores.reshape(-1)[i : i + n]
                reference = out.sequences_scores[i : i + n].double()
                torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)
    assert n_compared >= 12


def draw_as(draws: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers choose the token of step t by inversion at the numbers draws[:, t]."""
    step = iter(draws.T)

    def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
        assert num_samples == 1
        cumulative = probabilities.cumsum(dim=-1)
        at = next(step)[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, at, right=True)

    monkeypatch.setattr(torch, "multinomial", multinomial)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5"])
def test_samples_match_transformers_with_the_same_random_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All filters and all options of the logits, in their order, and several samples of a row."""
    model, hf_model = load_both(name, tmp_path, 3.0)
    is_seq2seq = isinstance(model, EncoderDecoder)
    rng = random.Random(name)
    n_different = 0
    for seed in range(16):
        x, n = random_ids(5, 7), rng.choice([1, 3])
        mask = torch.ones_like(x).bool()
        options = draw_options(rng, is_seq2seq=is_seq2seq) if seed % 4 else {}
        # transformers counts padding as tokens of n-grams and of the minimum length.
        if not options.keys() & {"no_repeat_ngram_size", "min_length"}:
            mask = padding_mask([3, 7, 5, 1, 6], left=not is_seq2seq)
            x = x.masked_fill(~mask, PAD)
        filters: Any = {
            "temperature": rng.choice([0.7, 1.0, 1.8]),
            "top_k": rng.choice([None, 5, 20]),
            "top_p": rng.choice([None, 0.7, 0.95]),
            "min_p": rng.choice([None, 0.05, 0.3]),
        }
        repeated = (part.repeat_interleave(n, 0) for part in (x, mask))
        draw_as(uniform_per_prompt(*repeated, MAX_NEW, seed), monkeypatch)
        theirs = {**filters, "top_k": filters["top_k"] or 0, "do_sample": True, "num_beams": 1}
        out = hf_model.generate(
            x,
            attention_mask=mask.long(),
            num_return_sequences=n,
            **their_options(model, theirs | options),
        )
        found = fourfold.generate(
            model, x, mask=mask, seed=seed, num_return_sequences=n, **filters, **OURS, **options
        )
        assert found.shape[:-1] == ((5,) if n == 1 else (5, n))
        start = 1 if is_seq2seq else 7
        rows = found.reshape(5 * n, -1)
        assert new_tokens(rows, start) == new_tokens(out, start), (filters, options)
        greedy = fourfold.generate(model, x, mask=mask, temperature=0.0, **OURS, **options)
        expected = new_tokens(greedy.repeat_interleave(n, 0), start)
        n_different += sum(a != b for a, b in zip(new_tokens(rows, start), expected, strict=True))
    assert n_different > 20


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_stored_options_are_read_and_written_as_by_transformers(name: str, tmp_path: Path) -> None:
    """The options of generation_config.json, before and after an export with changed ones."""
    model, hf_model = load_both(name, tmp_path, 3.0)
    is_seq2seq = isinstance(model, EncoderDecoder)
    x, start = random_ids(12, 7), 1 if is_seq2seq else 7
    stored: Any = {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "min_length": 11}
    stored |= {"max_new_tokens": MAX_NEW, "eos_token_id": EOS, "pad_token_id": PAD}
    if is_seq2seq:
        stored |= {"forced_bos_token_id": 17, "decoder_start_token_id": START}

    def theirs(model: Any) -> list[list[int]]:
        return new_tokens(model.generate(x, attention_mask=torch.ones_like(x)), start)

    plain = theirs(hf_model)
    hf_model.generation_config.update(**stored)
    hf_model.save_pretrained(tmp_path / "stored")
    expected = theirs(hf_model)
    assert sum(a != b for a, b in zip(plain, expected, strict=True)) > 3
    model = fourfold.load(tmp_path / "stored")
    assert new_tokens(fourfold.generate(model.double(), x), start) == expected

    model = fourfold.load(tmp_path / "stored")
    changed: Any = {"no_repeat_ngram_size": None, "min_new_tokens": 3, "repetition_penalty": 0.8}
    model.generation_defaults = dataclasses.replace(model.generation_defaults, **changed)
    fourfold.save(model, tmp_path / "changed")
    again = fourfold.load(tmp_path / "changed")
    assert again.generation_defaults == model.generation_defaults
    reloaded = to_fp64(type(hf_model).from_pretrained(tmp_path / "changed"))
    expected = theirs(reloaded)
    assert new_tokens(fourfold.generate(again.double(), x), start) == expected
    # Options of a sampling model, and several sequences.
    sampling: Any = {"temperature": 0.9, "top_k": 30, "min_p": 0.1, "num_return_sequences": 2}
    model.generation_defaults = dataclasses.replace(model.generation_defaults, **sampling)
    fourfold.save(model, tmp_path / "sampling")
    config = hf.GenerationConfig.from_pretrained(tmp_path / "sampling")
    assert config.do_sample
    assert {key: getattr(config, key) for key in sampling} == sampling
    again = fourfold.load(tmp_path / "sampling")
    assert again.generation_defaults == model.generation_defaults
    assert fourfold.generate(again, x, seed=0).shape[:2] == (12, 2)
    assert fourfold.generate(again, x, temperature=0.0).ndim == 2
