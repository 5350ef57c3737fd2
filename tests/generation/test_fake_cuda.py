"""Decoding on CUDA tensors without values: devices of all tensors, and waits for the GPU."""

from collections import Counter
from typing import Any

import pytest
import torch

from fourfold.generation import beam_search, generate
from tests.fixtures.fake_cuda import CUDA, FakeCuda
from tests.fixtures.tiny_models import build, tokens

T = 5  # tokens of a prompt or source
SAMPLING = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 0}
BEAM_OF_CAUSAL = {"search": 1, "BeamCache.reorder": 1, "is_identity": 1}
BEAM_OF_PAIRS = {"search": 1, "Seq2SeqStep._sources_of": 2, "is_identity": 1}


def waits(family: str, n: int, beam: int | None, **options: Any) -> Counter[str]:
    """Decode n tokens and return how often each function waited for the GPU."""
    model = build(family)
    ids, mask = tokens(2, T), torch.ones(2, T, dtype=torch.bool)
    gpu = FakeCuda(
        {
            "GenerationInputs._check_lengths": [T],
            "GenerationInputs.limit": [80],
            "generate": [n],
            "sample": [n, *[1] * n],  # limit, and for each token: no sequence has ended
            "search": [n, *[0] * n, n],  # limit, for each token the same, number of tokens
        }
    )
    special = {"bos_id": None if family == "causal" else 1, "eos_id": 2}
    with gpu:
        model.to(CUDA)
        ids, mask = ids.to(CUDA), mask.to(CUDA)
        if beam is None:
            out = generate(model, ids, n, mask=mask, **special, **options)
        else:
            out, _ = beam_search(
                model, ids, beam, src_mask=mask, max_new_tokens=n, **special, **options
            )
        assert out.device == CUDA
        assert out.shape[1] == n + (T if family == "causal" else 1)
    return Counter(gpu.waits)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("causal", {}),
        ("causal", SAMPLING),
        ("causal", {"use_cache": False}),
        ("encoder_decoder", SAMPLING),
        ("encoder_decoder", {"use_cache": False}),
        ("t5", {}),
        ("joined", {}),
    ],
    ids=str,
)
def test_sampling_waits_once_per_token(family: str, options: dict[str, Any]) -> None:
    """The host must know whether all sequences have ended."""
    per_token = waits(family, 4, None, **options) - waits(family, 3, None, **options)
    assert per_token == {"sample": 1}


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("causal", BEAM_OF_CAUSAL),
        ("encoder_decoder", BEAM_OF_PAIRS),
        ("joined", BEAM_OF_PAIRS),
        ("t5", BEAM_OF_PAIRS),
    ],
)
def test_beam_search_waits_for_ended_sequences_only(family: str, expected: dict[str, int]) -> None:
    """The host must know which sources have no hypothesis left."""
    assert waits(family, 5, 3) - waits(family, 4, 3) == expected
