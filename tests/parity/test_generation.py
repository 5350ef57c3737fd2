"""Tests that greedy decoding and beam search give the tokens of transformers' `generate`."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
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
