"""LoRA: initial output, target layers, formula, merging and dropout."""

from itertools import chain

import pytest
import torch
from torch import nn

from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.lora import LoRALinear, add_lora, is_lora, merge_lora
from fourfold.models import CausalLM
from fourfold.training.finetuning import apply_finetuning
from tests.fixtures.tiny_models import build, tokens


def adapted(dropout: float = 0.0, targets: tuple[str, ...] = ("q", "v")) -> CausalLM:
    model: CausalLM = build("causal")
    tuning = TuningConfig(lora_rank=2, lora_alpha=8.0, lora_dropout=dropout, lora_targets=targets)
    add_lora(model, tuning)
    return model


def test_new_updates_do_not_change_the_output() -> None:
    torch.manual_seed(0)
    plain = build("causal")
    torch.manual_seed(0)
    changed = adapted()
    ids = tokens(2, 9)
    assert torch.equal(plain(ids), changed(ids))


def test_only_target_layers_are_replaced() -> None:
    chosen = {n for n, m in adapted().named_modules() if isinstance(m, LoRALinear)}
    assert chosen == {f"stack.blocks.{i}.attn.{m}" for i in (0, 1) for m in ("q", "v")}
    chosen = {n for n, m in adapted(targets=("up",)).named_modules() if isinstance(m, LoRALinear)}
    assert chosen == {f"stack.blocks.{i}.ff.up" for i in (0, 1)}
    with pytest.raises(
        InputError, match="lora_targets must name linear layers of the model, got query"
    ):
        adapted(targets=("query",))


def test_output_follows_the_formula_and_merging_keeps_it() -> None:
    model = adapted()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_lora(model, name):
                parameter.normal_()
    layer = model.stack.blocks[0].attn.q
    assert isinstance(layer, LoRALinear)
    x = torch.randn(3, 12, dtype=torch.float64)
    weight = layer.base.weight + 8.0 / 2 * layer.b @ layer.a
    torch.testing.assert_close(layer(x), x @ weight.T + layer.base.bias)
    ids = tokens(2, 9)
    before = model(ids)
    merged = merge_lora(model)
    torch.testing.assert_close(merged(ids), before)
    assert merged.state_dict().keys() == build("causal").state_dict().keys()


def test_dropout_affects_the_update_only() -> None:
    model = adapted(dropout=0.5).train()
    ids = tokens(2, 9)
    assert torch.equal(model(ids), model(ids))  # B is 0, so the update is 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_lora(model, name):
                parameter.normal_()
    assert not torch.equal(model(ids), model(ids))


class Gate(nn.Module):
    """Module of a user, whose parameters have the names of those of a `LoRALinear`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.q = layer
        self.a = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.a * self.q(x) + self.b
        return y


def test_parameters_of_a_user_called_a_and_b_are_frozen_like_all_others() -> None:
    torch.manual_seed(0)
    model = build("causal")
    for block in model.stack.blocks:
        block.attn.q = Gate(block.attn.q)
    names = {*model.state_dict()}
    apply_finetuning(model, TuningConfig(lora_rank=2))
    updates = [m for m in model.modules() if isinstance(m, LoRALinear)]
    assert len(updates) == 4
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert trained == {id(p) for p in chain(*((m.a, m.b) for m in updates))}
    assert trained == {id(p) for name, p in model.named_parameters() if is_lora(model, name)}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # the first step changes B only
        model(tokens(2, 9)).square().mean().backward()
        optimizer.step()
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert len(changed) == 8
    assert {name.rpartition(".")[0] for name in changed} == {
        name for name, m in model.named_modules() if isinstance(m, LoRALinear)
    }
    ids = tokens(2, 9)
    expected = model(ids)
    merged = merge_lora(model)
    assert {*merged.state_dict()} == names
    torch.testing.assert_close(merged(ids), expected)
