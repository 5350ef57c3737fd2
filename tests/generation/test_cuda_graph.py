"""A step over a cache of fixed size: recorded on a GPU, run as it is on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold import generate
from fourfold.generation import decoding, graph
from fourfold.models import CausalLM, CausalLMConfig

EOS = 2


@pytest.fixture
def model() -> CausalLM:
    torch.manual_seed(0)
    config = CausalLMConfig(d_model=32, n_layers=2, n_heads=2, d_ff=48, vocab_size=23, max_len=60)
    return CausalLM(config).eval()


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every step goes by the static cache, without a graph; how many rows each was of."""
    rows: list[int] = []

    def record(step: Any, cache: Any, ids: Tensor) -> Callable[[Tensor], Tensor]:
        def run(given: Tensor) -> Tensor:
            rows.append(len(given))
            assert given is ids
            return step(given)

        return run

    monkeypatch.setattr(graph, "record", record)
    return rows


CASES: list[dict[str, Any]] = [
    {},
    {"eos_id": EOS},
    {"eos_id": EOS, "temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_k": 5, "seed": 1},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("padded", ["no", "left", "right"])
def test_it_writes_the_same(
    options: dict[str, Any], padded: str, model: CausalLM, unrecorded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ids = torch.randint(3, 23, (5, 9))
    mask = None
    if padded != "no":
        mask = torch.arange(9) < torch.tensor([9, 3, 1, 7, 5])[:, None]
        mask = mask.flip(1) if padded == "left" else mask
    wanted = generate(model, ids, 40, mask=mask, **options)
    assert not unrecorded
    monkeypatch.setattr(decoding, "pays", lambda device, new: True)
    found = generate(model, ids, 40, mask=mask, **options)
    assert torch.equal(found, wanted)
    assert len(set(unrecorded)) == 1  # also when some have ended


def test_it_pays_on_a_gpu_only() -> None:
    assert not graph.pays(torch.device("cpu"), 1000)
    assert not graph.pays(torch.device("cuda"), graph.LEAST - 1)
    assert graph.pays(torch.device("cuda"), graph.LEAST)


@pytest.mark.cuda
@pytest.mark.parametrize("options", CASES)
def test_a_recorded_step_writes_the_same(
    options: dict[str, Any], model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model.cuda().double()
    ids = torch.randint(3, 23, (5, 9), device="cuda")
    found = [generate(model, ids, 40, **options) for _ in range(2)]
    monkeypatch.setattr(decoding, "pays", lambda device, new: False)
    wanted = generate(model, ids, 40, **options)
    assert torch.equal(found[0], wanted)
    assert torch.equal(found[1], wanted)
    with torch.autocast("cuda", torch.bfloat16):
        assert not graph.pays(ids.device, 1000)
