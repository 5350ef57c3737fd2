"""CUDA graph of a decoding step; on a CPU the step runs with the static cache, uncaptured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold import generate
from fourfold.generation import cuda_graph
from fourfold.models import CausalLM, CausalLMConfig

EOS = 2


@pytest.fixture
def model() -> CausalLM:
    torch.manual_seed(0)
    config = CausalLMConfig(d_model=32, n_layers=2, n_heads=2, d_ff=48, vocab_size=23, max_len=60)
    return CausalLM(config).eval()


@pytest.fixture
def uncaptured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run each step with the static cache, without a graph; returns the rows of each step."""
    rows: list[int] = []

    def capture(step: Any, cache: Any, ids: Tensor) -> Callable[[], Tensor]:
        def run() -> Tensor:
            rows.append(len(ids))
            return step(ids)

        return run

    monkeypatch.setattr(cuda_graph, "capture", capture)
    return rows


CASES: list[dict[str, Any]] = [
    {},
    {"eos_id": EOS},
    {"eos_id": EOS, "temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_k": 5, "seed": 1},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("padded", ["no", "left", "right"])
def test_static_cache_generates_the_same_tokens(
    options: dict[str, Any],
    padded: str,
    model: CausalLM,
    uncaptured: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = torch.randint(3, 23, (5, 9))
    mask = None
    if padded != "no":
        mask = torch.arange(9) < torch.tensor([9, 3, 1, 7, 5])[:, None]
        mask = mask.flip(1) if padded == "left" else mask
    expected = generate(model, ids, 40, mask=mask, **options)
    assert not uncaptured
    monkeypatch.setattr(cuda_graph, "is_worth_capturing", lambda device, new_tokens: True)
    found = generate(model, ids, 40, mask=mask, **options)
    assert torch.equal(found, expected)
    assert len(set(uncaptured)) == 1  # also after some rows have ended


def test_capturing_is_worth_it_on_a_gpu_only() -> None:
    assert not cuda_graph.is_worth_capturing(torch.device("cpu"), 1000)
    assert not cuda_graph.is_worth_capturing(torch.device("cuda"), cuda_graph.MIN_NEW_TOKENS - 1)
    assert cuda_graph.is_worth_capturing(torch.device("cuda"), cuda_graph.MIN_NEW_TOKENS)


@pytest.mark.cuda
@pytest.mark.parametrize("options", CASES)
def test_captured_step_generates_the_same_tokens(
    options: dict[str, Any], model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model.cuda().double()
    ids = torch.randint(3, 23, (5, 9), device="cuda")
    found = [generate(model, ids, 40, **options) for _ in range(2)]
    monkeypatch.setattr(cuda_graph, "is_worth_capturing", lambda device, new_tokens: False)
    expected = generate(model, ids, 40, **options)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], expected)
    with torch.autocast("cuda", torch.bfloat16):
        assert not cuda_graph.is_worth_capturing(ids.device, 1000)
