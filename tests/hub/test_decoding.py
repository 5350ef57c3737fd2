"""What transformers' `generate` writes with a model, ours writes with it: token for token."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.models import EncoderDecoder
from tests.hub.foreign_models import exact, ids, make, padding

NAMES = [
    "gpt1",
    "gpt2",
    "gpt2-untied",
    "marian",
    "pegasus",
    "bart",
    "bart-scaled",
    "t5",
    "t5-gated-own-head",
]
EOS, PAD, START = 2, 1, 1
NEW = 11


def both(name: str, tmp_path: Path, eos_bias: float = 0.0) -> tuple[Any, Any]:
    """Ours and theirs in fp64, sure of what they write, and of when it ends."""
    theirs = make(name)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:  # not the waves
                parameter.mul_(3.0)
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias[0, EOS] += eos_bias
        elif theirs.config.is_encoder_decoder:  # no bias: EOS is very likely or very unlikely
            theirs.get_output_embeddings().weight[EOS] *= eos_bias
    theirs.save_pretrained(tmp_path / "theirs")
    ours = fourfold.load(tmp_path / "theirs")
    return ours.double(), exact(theirs)


def written(rows: torch.Tensor, start: int) -> list[list[int]]:
    """New tokens up to and with EOS."""
    found = []
    for row in rows[:, start:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        found.append(row[:end])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_greedy(name: str, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path, 1.0)
    pairs = isinstance(ours, EncoderDecoder)
    mask = padding([3, 7, 5, 1, 6, 7], left=not pairs)
    x = ids(*mask.shape).masked_fill(~mask, PAD)
    expected = theirs.generate(
        x, attention_mask=mask.long(), max_new_tokens=NEW, do_sample=False, num_beams=1,
        eos_token_id=EOS, pad_token_id=PAD, **({"decoder_start_token_id": START} if pairs else {}),
    )  # fmt: skip
    found = fourfold.generate(ours, x, NEW, EOS, mask=mask, bos_id=START, pad_id=PAD)
    start = 1 if pairs else x.shape[1]
    assert written(found, start) == written(expected, start)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_beams(name: str, alpha: float, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path, 6.0 if "bart" in name else 4.0)
    pairs = isinstance(ours, EncoderDecoder)
    mask = padding([3, 7, 5, 1, 6, 7, 2, 4] * 3, left=not pairs)
    x = ids(*mask.shape).masked_fill(~mask, PAD)
    out = theirs.generate(
        x, attention_mask=mask.long(), max_new_tokens=NEW, do_sample=False, num_beams=4,
        length_penalty=alpha, early_stopping="never", eos_token_id=EOS, pad_token_id=PAD,
        return_dict_in_generate=True, output_scores=True,
        **({"decoder_start_token_id": START} if pairs else {}),
    )  # fmt: skip
    found, scores = fourfold.beam_search(
        ours, x, 4, alpha, "power", src_mask=mask, bos_id=START, eos_id=EOS, pad_id=PAD, max_len=NEW
    )
    start = 1 if pairs else x.shape[1]
    theirs_written, ours_written = written(out.sequences, start), written(found, start)
    # Of a target that ended and one that was cut off, ours prefers the first, whatever the scores.
    alike = [(EOS in a) == (EOS in b) for a, b in zip(ours_written, theirs_written, strict=True)]
    close = torch.isclose(scores, out.sequences_scores.double(), rtol=1e-5, atol=1e-6).tolist()
    for mine, their, near, comparable in zip(
        ours_written, theirs_written, close, alike, strict=True
    ):
        assert not comparable or (mine == their and near)
    assert sum(alike) >= 6
    if pairs and alpha == 1.0:
        assert len({len(row) for row in ours_written if EOS in row}) > 1
