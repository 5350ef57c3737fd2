"""Models built on the meta device, without memory for their weights."""

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from fourfold.layers.base_model import on_meta
from fourfold.models import CausalLM, CausalLMConfig

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 32,
    "vocab_size": 50,
    "max_len": 8,
}


class Recorder(TorchDispatchMode):
    """Mode that records the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("init", ["gpt2", "bert", "vaswani"])
def test_models_on_the_meta_device_draw_no_random_numbers(init: str) -> None:
    config = CausalLMConfig(**SMALL, init=init)
    with on_meta(), Recorder() as recorder:
        model = CausalLM(config)
    expected = CausalLM(config)
    assert all(p.is_meta for p in model.parameters())
    assert [p.shape for p in model.parameters()] == [p.shape for p in expected.parameters()]
    assert not [name for name in recorder.names if "normal" in name or "uniform" in name]
    assert CausalLM(config).embed.tokens.weight.std() > 0  # the mode ends with its block
