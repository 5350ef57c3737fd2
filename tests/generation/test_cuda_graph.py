"""CUDA graph of a decoding step; on a CPU the step runs with the static cache, uncaptured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold import generate
from fourfold.core.attention import Attention, attention_backend
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
    cuda_graph._KEPT.clear()
    return rows


@pytest.fixture
def captured(uncaptured: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use a `GraphStep` on a CPU; returns the number of rows of each capture."""
    captures: list[int] = []
    capture = cuda_graph.capture

    def counted(step: Any, cache: Any, ids: Tensor) -> Callable[[], Tensor]:
        captures.append(len(ids))
        return capture(step, cache, ids)

    monkeypatch.setattr(cuda_graph, "capture", counted)
    monkeypatch.setattr(cuda_graph, "is_worth_capturing", lambda device, new_tokens: True)
    return captures


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


def plain(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Tensor:
    """Generate without a graph."""
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graph, "is_worth_capturing", lambda device, new_tokens: False)
        return generate(*arguments, **options)


def test_graph_is_captured_once_for_a_shape(
    model: CausalLM, captured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = torch.arange(9) < torch.tensor([9, 3, 1, 7, 5])[:, None]
    for options in ({}, {"mask": mask}, {"mask": mask.flip(1), "eos_id": EOS}, {}):
        ids = torch.randint(3, 23, (5, 9))
        expected = plain(monkeypatch, model, ids, 40, **options)
        assert torch.equal(generate(model, ids, 40, **options), expected)
    assert captured == [5]
    shorter, longer = ids[:, :4], torch.randint(3, 23, (5, 10))
    for prompt, new in ((shorter, 45), (longer, 40), (ids[:2], 40), (ids[:2], 40)):
        assert torch.equal(generate(model, prompt, new), plain(monkeypatch, model, prompt, new))
    assert captured == [5, 5, 2]  # 4 + 45 tokens have the shape of 9 + 40


def test_changed_model_is_captured_again(
    model: CausalLM, captured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.randint(3, 23, (2, 9))

    def n_captures() -> int:
        captured.clear()
        assert torch.equal(generate(model, ids, 20), plain(monkeypatch, model, ids, 20))
        return len(captured)

    assert [n_captures(), n_captures()] == [1, 0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # a training step: the graph reads the same memory
    assert n_captures() == 0
    layer = model.stack.blocks[0]
    layer.ff.up.weight = torch.nn.Parameter(torch.randn_like(layer.ff.up.weight))
    assert [n_captures(), n_captures()] == [1, 0]
    layer.attn.scale = 0.7
    assert [n_captures(), n_captures()] == [1, 0]
    monkeypatch.setattr(Attention, "normalize", staticmethod(lambda x: (2 * x).softmax(-1)))
    assert [n_captures(), n_captures()] == [1, 0]
    with attention_backend("naive"):
        assert n_captures() == 1
    hook = layer.register_forward_hook(lambda module, inputs, output: output * 0.5)
    assert [n_captures(), n_captures()] == [1, 1]
    hook.remove()
    assert n_captures() == 1


def test_failed_generation_keeps_no_graph(model: CausalLM, captured: list[int]) -> None:
    ids = torch.randint(3, 23, (2, 9))
    generate(model, ids, 20)
    assert model in cuda_graph._KEPT
    calls = 0

    def fail_later(rows: Tensor, tokens: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return torch.zeros(len(rows), dtype=torch.bool)

    with pytest.raises(KeyboardInterrupt):
        generate(model, ids, 20, on_tokens=fail_later)
    assert model not in cuda_graph._KEPT
    assert captured == [2]


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
