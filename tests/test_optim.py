"""Optimizers compared with the formulas of their papers; parameter groups."""

from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from fourfold.data import CausalTextData
from fourfold.errors import InputError
from fourfold.finetuning.layer_lr_decay import layer_lr_scales
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    ViT,
    ViTConfig,
)
from fourfold.optim import (
    OptimizerConfig,
    hidden_matrices,
    make_optimizer,
    parameter_groups,
)
from fourfold.schedules import ScheduleConfig, learning_rate_factor
from fourfold.tasks import CausalLanguageModeling
from fourfold.tokenization.training import TokenizerConfig

TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12}


def names(model: nn.Module, decay: str) -> tuple[set[str], set[str]]:
    """Return the names of parameters with and without weight decay."""
    by_id = {id(p): key for key, p in model.named_parameters()}
    groups = parameter_groups(model, OptimizerConfig(weight_decay=0.1, weight_decay_params=decay))
    found: dict[float, set[str]] = {0.1: set(), 0.0: set()}
    for group in groups:
        found[group["weight_decay"]] = {by_id[id(p)] for p in group["params"]}
    everything = [p for group in groups for p in group["params"]]
    assert len(everything) == len(by_id)  # each once
    return found[0.1], found[0.0]


@pytest.mark.parametrize("name", get_args(get_type_hints(OptimizerConfig)["name"]))
def test_default_weight_decay_is_no_l2_penalty(name: Any) -> None:
    """adam and sgd inherited the 0.01 of adamw, which torch adds to their gradients."""
    config = OptimizerConfig(name=name)
    decoupled = name in ("adamw", "muon")
    assert config.weight_decay == (0.01 if decoupled else 0.0)
    assert OptimizerConfig(**asdict(config)) == config
    assert OptimizerConfig(name=name, weight_decay=0.5).weight_decay == 0.5
    model = CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6))
    groups = make_optimizer(model, config).param_groups
    assert max(group["weight_decay"] for group in groups) == config.weight_decay
    if name in ("adam", "sgd"):  # a parameter without gradient signal rests
        before = model.embed.tokens.weight.clone()
        (0.0 * sum(p.sum() for p in model.parameters())).backward()
        make_optimizer(model, config).step()
        assert torch.equal(model.embed.tokens.weight, before)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6))
    decaying, resting = names(model, "matrices")
    assert {"embed.tokens.weight", "embed.positions.weight"} < decaying
    assert len(decaying) == 2 + 6
    assert all(key.endswith("bias") or "norm" in key for key in resting)


def test_only_linear_layers_decay() -> None:
    model = ViT(ViTConfig(**TINY, image_size=8, patch_size=4, n_classes=3))
    decaying, resting = names(model, "linear")
    assert {"embed.patches.weight", "heads.0.weight"} < decaying
    assert len(decaying) == 2 + 6
    assert {"embed.prefix", "embed.positions.weight", "heads.0.bias"} < resting


def test_all_parameters_decay() -> None:
    model = CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6))
    assert names(model, "all")[1] == set()


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    (group,) = parameter_groups(model, OptimizerConfig())
    assert group["params"] == [model.bias]


@pytest.mark.parametrize("correct", [True, False])
def test_weight_decay_of_adamw_is_decoupled(correct: bool) -> None:
    """Loshchilov and Hutter 2017: without a gradient, AdamW shrinks a weight by lr times decay."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    name = "adamw" if correct else "adam"
    optimizer = make_optimizer(layer, OptimizerConfig(name, lr=0.1, weight_decay=0.5))
    layer.weight.grad = torch.zeros(1, 1)
    optimizer.step()
    # Adam sees the decay as a gradient and makes a step of its usual size, lr.
    assert layer.weight.item() == pytest.approx(2 * (1 - 0.1 * 0.5) if correct else 2 - 0.1)


def test_adam_equals_the_formula_of_its_paper() -> None:
    """Kingma and Ba 2014, algorithm 1, with bias correction."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    config = OptimizerConfig("adam", lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    optimizer = make_optimizer(layer, config)
    theta, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate((0.5, -2.0, 0.1), 1):
        layer.weight.grad = torch.full((1, 1), g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        theta -= 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)) ** 0.5 + 1e-9)
        assert layer.weight.item() == pytest.approx(theta, rel=1e-5)


def test_sgd_momentum() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    config = OptimizerConfig("sgd", lr=0.1, momentum=0.5, weight_decay=0.0)
    optimizer = make_optimizer(layer, config)
    for _ in range(2):
        layer.weight.grad = torch.ones(1, 1)
        optimizer.step()
    assert layer.weight.item() == pytest.approx(-0.1 - 0.15)


def test_adadelta_equals_its_formula() -> None:
    """Zeiler 2012, algorithm 1, with the values of Bahdanau et al. 2015."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    config = OptimizerConfig("adadelta", lr=1.0, rho=0.95, eps=1e-6, weight_decay=0.0)
    optimizer = make_optimizer(layer, config)
    theta = squares = updates = 0.0
    for g in (0.5, -0.2, 0.1):
        layer.weight.grad = torch.full((1, 1), g)
        optimizer.step()
        squares = 0.95 * squares + 0.05 * g * g
        update = g * (updates + 1e-6) ** 0.5 / (squares + 1e-6) ** 0.5
        updates = 0.95 * updates + 0.05 * update * update
        theta -= update
        assert layer.weight.item() == pytest.approx(theta, rel=1e-5)


def test_unknown_choices_are_rejected() -> None:
    with pytest.raises(
        InputError, match=r"optimizer.name must be one of adam, adamw, adadelta, sgd, muon, got"
    ):
        OptimizerConfig(name="lion")
    with pytest.raises(
        InputError, match="weight_decay_params must be one of matrices, linear, all, got 'none'"
    ):
        OptimizerConfig(weight_decay_params="none")


def test_clipping_with_a_gradient_scaler(tmp_path: Path) -> None:
    class Half(MixedPrecision):
        """Mixed fp16 training with the gradient scaler of the CPU."""

        def __init__(self) -> None:
            super().__init__("16-mixed", "cuda", torch.amp.GradScaler("cpu"))

        def forward_context(self) -> Any:
            return torch.autocast("cpu", dtype=torch.bfloat16)

    task = CausalLanguageModeling(
        CausalLMConfig(d_model=16, n_layers=1, n_heads=2, d_ff=24, vocab_size=None, max_len=16)
    )
    data = CausalTextData(
        "builtin", block_size=16, batch_size=4, tokenizer=TokenizerConfig("byte_bpe", 300)
    )
    trainer = Trainer(
        accelerator="cpu",
        plugins=[Half()],
        max_steps=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(task, data)
    assert trainer.global_step == 2


def test_adamw_without_bias_correction_equals_the_optimizer_of_bert() -> None:
    """google-research/bert, optimization.py: m / (sqrt(v) + eps) + decay times the weight."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    config = OptimizerConfig("adamw", lr=0.01, eps=1e-6, weight_decay=0.1, bias_correction=False)
    optimizer = make_optimizer(layer, config)
    theta, m, v = 1.0, 0.0, 0.0
    for g in (0.5, -2.0, 0.1, 0.3):
        layer.weight.grad = torch.full((1, 1), g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        theta -= 0.01 * (m / (v**0.5 + 1e-6) + 0.1 * theta)
        assert layer.weight.item() == pytest.approx(theta, rel=1e-5)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["eps"], group["weight_decay"]) == (0.01, 1e-6, 0.1)
    # The resumed optimizer continues with the same values.
    again = make_optimizer(layer, config)
    again.load_state_dict(optimizer.state_dict())
    layer.weight.grad = torch.full((1, 1), -0.7)
    again.step()
    m, v = 0.9 * m - 0.1 * 0.7, 0.999 * v + 0.001 * 0.49
    theta -= 0.01 * (m / (v**0.5 + 1e-6) + 0.1 * theta)
    assert layer.weight.item() == pytest.approx(theta, rel=1e-5)


def test_parameter_that_is_unfrozen_later_has_no_bias_correction_either() -> None:
    pair = nn.ParameterList([nn.Parameter(torch.ones(1, 1)) for _ in range(2)])
    config = OptimizerConfig(
        "adamw",
        lr=0.01,
        eps=1e-6,
        weight_decay=0.0,
        weight_decay_params="all",
        bias_correction=False,
    )
    optimizer = make_optimizer(pair, config)
    pair[0].grad = torch.full((1, 1), 0.5)
    optimizer.step()
    for parameter in pair:
        parameter.grad = torch.full((1, 1), 0.5)
    optimizer.step(lambda: 1.0)
    # The first step has m = 0.05 and v = 0.00025.
    one = 0.01 * 0.05 / (0.00025**0.5 + 1e-6)
    assert pair[1].item() == pytest.approx(1 - one, rel=1e-5)
    assert pair[0].item() < 1 - 2 * one


def test_only_adamw_supports_no_bias_correction() -> None:
    with pytest.raises(InputError, match=r"optimizer.bias_correction must be true for sgd"):
        OptimizerConfig("sgd", bias_correction=False)


def test_layer_decay_scales_learning_rates() -> None:
    """The learning rate of a layer is a fixed fraction of that of the next (ELECTRA, BEiT)."""
    model = CausalLM(
        CausalLMConfig(**{**TINY, "n_layers": 2}, vocab_size=20, max_len=6, tie_embeddings=False)
    )
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0), layer_lr_scales(model, 0.5))
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in model.named_parameters()}
    assert len(rates) == len(found)
    assert found["head.own.weight"] == 1.0
    assert found["stack.norm.weight"] == found["stack.blocks.1.attn.q.bias"] == 0.5
    assert found["stack.blocks.0.attn.q.weight"] == 0.25
    assert found["embed.tokens.weight"] == 0.125
    schedule = LambdaLR(optimizer, learning_rate_factor(ScheduleConfig("linear"), 1.0, 4, 8))
    optimizer.step()
    schedule.step()
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [
        share * 0.75 for share in (0.125, 0.25, 0.5, 1.0)
    ]


MUON = OptimizerConfig("muon", lr=0.01, weight_decay=0.1, momentum=0.95, muon_lr_scale=0.5)


def tiny_lm(seed: int = 0) -> CausalLM:
    torch.manual_seed(seed)
    return CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6, tie_embeddings=False))


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_muon_updates_the_matrices_of_blocks_only() -> None:
    image_model = ViT(ViTConfig(**TINY, image_size=8, patch_size=4, n_classes=3))
    for model in (tiny_lm(), image_model):
        by_id = {id(p): name for name, p in model.named_parameters()}
        found = {by_id[id(p)] for p in hidden_matrices(model)}
        layers = ("attn.q", "attn.k", "attn.v", "attn.out", "ff.up", "ff.down")
        assert found == {f"stack.blocks.0.{name}.weight" for name in layers}
        groups = parameter_groups(model, MUON)
        assert found == {by_id[id(p)] for g in groups if g["muon"] for p in g["params"]}
        assert sorted({(g["lr"], g["muon"]) for g in groups}) == [(0.005, True), (0.01, False)]


def test_muon_makes_the_steps_of_the_optimizers_of_torch() -> None:
    model, reference = tiny_lm(), tiny_lm()
    optimizer = make_optimizer(model, MUON)
    matrices = hidden_matrices(reference)
    others = [p for p in reference.parameters() if all(p is not matrix for matrix in matrices)]
    pair = [
        torch.optim.Muon(
            matrices, lr=0.005, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [
                {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0},
            ],
            lr=0.01,
            fused=True,
        ),
    ]
    for step in range(3):
        set_gradients(model, step)
        set_gradients(reference, step)
        optimizer.step()
        for one in pair:
            one.step()
    for (name, mine), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_update_of_muon_is_almost_orthogonal() -> None:
    model = tiny_lm()
    before = model.stack.blocks[0].ff.up.weight.detach().clone()  # (12, 8)
    optimizer = make_optimizer(model, OptimizerConfig("muon", lr=0.01, weight_decay=0.0))
    set_gradients(model, 0)
    optimizer.step()
    update = model.stack.blocks[0].ff.up.weight.detach() - before
    # Jordan et al. 2024: five iterations give singular values from about 0.7 to 1.2.
    values = torch.linalg.svdvals(update / (0.01 * 0.2 * 12**0.5))
    assert 0.6 < values.min() <= values.max() < 1.3


def test_resumed_muon_continues() -> None:
    whole, resumed = tiny_lm(), tiny_lm()
    optimizer = make_optimizer(whole, MUON)
    for step in range(4):
        if step == 2:
            saved = deepcopy(optimizer.state_dict())
            resumed.load_state_dict(whole.state_dict())
        set_gradients(whole, step)
        optimizer.step()
    optimizer = make_optimizer(resumed, MUON)
    optimizer.load_state_dict(saved)
    schedule = LambdaLR(optimizer, lambda step: 1.0)  # sets the learning rates of the groups
    for step in (2, 3):
        set_gradients(resumed, step)
        assert optimizer.step(lambda: 1.5) == 1.5
        schedule.step()
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_muon_skips_parameters_without_a_gradient() -> None:
    model = tiny_lm()
    optimizer = make_optimizer(model, MUON)
    set_gradients(model, 0)
    frozen = model.stack.blocks[0].attn.q.weight
    before, frozen.grad = frozen.detach().clone(), None
    optimizer.step()
    assert torch.equal(frozen, before)


def test_muon_needs_a_matrix_of_a_block() -> None:
    with pytest.raises(InputError, match=r"optimizer.name must not be muon: no matrix"):
        make_optimizer(nn.Linear(2, 2), MUON)
    model = tiny_lm()
    for matrix in hidden_matrices(model):
        matrix.requires_grad_(False)
    with pytest.raises(InputError, match=r"optimizer.name must not be muon: no matrix"):
        make_optimizer(model, MUON)
    for parameter in model.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
    assert len(make_optimizer(model, MUON).param_groups) == 1  # without a parameter for AdamW
