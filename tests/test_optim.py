"""Learning rates against the formulas of the papers, and who decays."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from fourfold.core.errors import InputError
from fourfold.data import CausalTextData
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.models import (
    CLIP,
    CausalLM,
    CausalLMConfig,
    CLIPConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ResNet,
    ResNetConfig,
    ViT,
    ViTConfig,
)
from fourfold.optim import (
    OptimizerConfig,
    ScheduleConfig,
    depths,
    learning_rate_factor,
    make_optimizer,
    make_schedule,
    parameter_groups,
)
from fourfold.tasks import CausalLanguageModeling

D = 512


def rates(config: ScheduleConfig, lr: float, total: int, d_model: int = D) -> list[float]:
    """What the optimizer's learning rate is at each of its steps."""
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name="sgd", lr=lr))
    schedule = make_schedule(optimizer, config, lr, total, d_model)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_noam_is_equation_3() -> None:
    factor = learning_rate_factor(ScheduleConfig("noam", warmup_steps=4000), 1.0, 100000, D)
    for step in (1, 10, 3999, 4000, 4001, 100000):
        assert factor(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    peak = max(range(20000), key=factor)
    assert peak + 1 == 4000
    assert factor(peak) == pytest.approx(6.987712e-04, rel=1e-6)


def test_noam_multiplies_its_rate() -> None:
    found = rates(ScheduleConfig("noam", warmup_steps=3), 2.0, 5, d_model=16)
    expected = [2 * 16**-0.5 * min(s**-0.5, s * 3**-1.5) for s in range(1, 6)]
    assert found == pytest.approx(expected)


def test_linear() -> None:
    found = rates(ScheduleConfig("linear", warmup_steps=4), 8.0, 12)
    assert found == pytest.approx([2, 4, 6, *(8 * (13 - step) / 9 for step in range(4, 13))])
    # Without a warm-up from the peak on, as transformers has it.
    assert rates(ScheduleConfig("linear"), 8.0, 4) == pytest.approx([8, 6, 4, 2])
    assert rates(ScheduleConfig("linear"), 8.0, 1) == [8.0]


def test_linear_from_start() -> None:
    """BERT's `polynomial_decay` counts from the first step, whatever the warm-up took."""
    found = rates(ScheduleConfig("linear_from_start", warmup_steps=4), 8.0, 12)
    assert found == pytest.approx([2, 4, 6, *(8 * (13 - step) / 12 for step in range(4, 13))])
    assert rates(ScheduleConfig("linear_from_start"), 8.0, 4) == pytest.approx([8, 6, 4, 2])


def test_linear_to_a_floor() -> None:
    found = rates(ScheduleConfig("linear", warmup_steps=2, min_lr=2.0), 8.0, 8)
    assert found == pytest.approx([4, *(2 + 6 * (9 - step) / 7 for step in range(2, 9))])


def test_cosine() -> None:
    found = rates(ScheduleConfig("cosine", warmup_steps=2, min_lr=1.0), 5.0, 10)
    decay = [1 + 4 * 0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(9)]
    assert found == pytest.approx([2.5, *decay])
    assert found[1] == pytest.approx(5)
    assert found[5] == pytest.approx(3)  # half-way down
    assert found[-1] == pytest.approx(1)


def test_inverse_sqrt() -> None:
    found = rates(ScheduleConfig("inverse_sqrt", warmup_steps=4), 6.0, 16)
    assert found[:4] == pytest.approx([1.5, 3, 4.5, 6])
    assert found[15] == pytest.approx(3)
    assert found == pytest.approx([6 * min(s / 4, (4 / s) ** 0.5) for s in range(1, 17)])


def test_constant() -> None:
    assert rates(ScheduleConfig(), 3.0, 4) == [3.0] * 4
    assert rates(ScheduleConfig(warmup_steps=2), 3.0, 4) == pytest.approx([1.5, 3, 3, 3])


def test_the_end_may_be_given() -> None:
    found = rates(ScheduleConfig("linear", total_steps=4), 4.0, 6)
    assert found == pytest.approx([4, 3, 2, 1, 0, 0])
    found = rates(ScheduleConfig("cosine", total_steps=2, min_lr=1.0), 4.0, 4)
    assert found[1:] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("name", ["noam", "inverse_sqrt", "linear", "cosine", "constant"])
def test_without_warm_up_all_is_finite(name: str) -> None:
    found = rates(ScheduleConfig(name), 1.0, 3)
    assert all(math.isfinite(rate) and rate >= 0 for rate in found)
    assert found == sorted(found, reverse=True)


def test_resumed_in_the_middle_a_schedule_goes_on() -> None:
    config, model = ScheduleConfig("cosine", warmup_steps=2), nn.Linear(2, 2)
    whole = rates(config, 1.0, 8)
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0))
    schedule = make_schedule(optimizer, config, 1.0, 8, D)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    saved = optimizer.state_dict(), schedule.state_dict()
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0))
    schedule = make_schedule(optimizer, config, 1.0, 8, D)
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(whole[3])
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(whole[4])


TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12}


def names(model: nn.Module, decay: str) -> tuple[set[str], set[str]]:
    """Names of parameters that decay, and of those that do not."""
    by_id = {id(p): key for key, p in model.named_parameters()}
    groups = parameter_groups(model, OptimizerConfig(weight_decay=0.1, decay=decay))
    found: dict[float, set[str]] = {0.1: set(), 0.0: set()}
    for group in groups:
        found[group["weight_decay"]] = {by_id[id(p)] for p in group["params"]}
    everything = [p for group in groups for p in group["params"]]
    assert len(everything) == len(by_id)  # each once
    return found[0.1], found[0.0]


def test_matrices_decay_and_vectors_do_not() -> None:
    model = CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6))
    decaying, resting = names(model, "matrices")
    assert {"embed.tokens.weight", "embed.positions.weight"} < decaying
    assert len(decaying) == 2 + 6
    assert all(key.endswith("bias") or "norm" in key for key in resting)


def test_linear_layers_alone_decay() -> None:
    model = ViT(ViTConfig(**TINY, image_size=8, patch_size=4, n_classes=3))
    decaying, resting = names(model, "linear")
    assert {"embed.patches.weight", "heads.0.weight"} < decaying
    assert len(decaying) == 2 + 6
    assert {"embed.prefix", "embed.positions.weight", "heads.0.bias"} < resting


def test_everything_decays() -> None:
    model = CausalLM(CausalLMConfig(**TINY, vocab_size=20, max_len=6))
    assert names(model, "all")[1] == set()


def test_a_frozen_parameter_is_left_alone() -> None:
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    (group,) = parameter_groups(model, OptimizerConfig())
    assert group["params"] == [model.bias]


@pytest.mark.parametrize("correct", [True, False])
def test_decay_of_adamw_is_decoupled_and_of_adam_is_not(correct: bool) -> None:
    """Loshchilov and Hutter 2017: without a gradient, AdamW shrinks a weight by lr times decay."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    name = "adamw" if correct else "adam"
    optimizer = make_optimizer(layer, OptimizerConfig(name, lr=0.1, weight_decay=0.5))
    layer.weight.grad = torch.zeros(1, 1)
    optimizer.step()
    # Adam sees the decay as a gradient and makes a step of its usual size, lr.
    assert layer.weight.item() == pytest.approx(2 * (1 - 0.1 * 0.5) if correct else 2 - 0.1)


def test_adam_follows_its_paper() -> None:
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


def test_momentum() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    config = OptimizerConfig("sgd", lr=0.1, momentum=0.5, weight_decay=0.0)
    optimizer = make_optimizer(layer, config)
    for _ in range(2):
        layer.weight.grad = torch.ones(1, 1)
        optimizer.step()
    assert layer.weight.item() == pytest.approx(-0.1 - 0.15)


def test_a_schedule_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InputError, match="warmup_steps is 10, but must be less than total_steps 5"):
        ScheduleConfig("linear", warmup_steps=10, total_steps=5)
    with pytest.raises(InputError, match=r"min_lr is 0\.01, but must not be above lr 0\.001"):
        learning_rate_factor(ScheduleConfig("cosine", min_lr=1e-2), 1e-3, 10, D)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InputError, match="optimizer name is 'lion', but must be one of adam"):
        OptimizerConfig(name="lion")
    with pytest.raises(InputError, match="decay is 'none'"):
        OptimizerConfig(decay="none")
    with pytest.raises(InputError, match="schedule name is 'step'"):
        ScheduleConfig(name="step")


def test_clipping_under_a_gradient_scaler(tmp_path: Path) -> None:
    class Half(MixedPrecision):
        """fp16 training as on CUDA, with the CPU's scaler, which works alike."""

        def __init__(self) -> None:
            super().__init__("16-mixed", "cuda", torch.amp.GradScaler("cpu"))

        def forward_context(self) -> Any:
            return torch.autocast("cpu", dtype=torch.bfloat16)

    task = CausalLanguageModeling(
        CausalLMConfig(d_model=16, n_layers=1, n_heads=2, d_ff=24, vocab_size=None, max_len=16)
    )
    data = CausalTextData("embedded", block_size=16, batch_size=4,
                          tokenizer=TokenizerConfig("byte_bpe", 300))  # fmt: skip
    trainer = Trainer(
        accelerator="cpu", plugins=[Half()], max_steps=2, gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        limit_val_batches=0, use_distributed_sampler=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(task, data)
    assert trainer.global_step == 2


def test_without_correction_adam_is_berts() -> None:
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
    # A resumed one goes on alike.
    again = make_optimizer(layer, config)
    again.load_state_dict(optimizer.state_dict())
    layer.weight.grad = torch.full((1, 1), -0.7)
    again.step()
    m, v = 0.9 * m - 0.1 * 0.7, 0.999 * v + 0.001 * 0.49
    theta -= 0.01 * (m / (v**0.5 + 1e-6) + 0.1 * theta)
    assert layer.weight.item() == pytest.approx(theta, rel=1e-5)


def test_what_was_frozen_for_a_while_has_its_own_count() -> None:
    pair = nn.ParameterList([nn.Parameter(torch.ones(1, 1)) for _ in range(2)])
    config = OptimizerConfig(
        "adamw", lr=0.01, eps=1e-6, weight_decay=0.0, decay="all", bias_correction=False
    )
    optimizer = make_optimizer(pair, config)
    pair[0].grad = torch.full((1, 1), 0.5)
    optimizer.step()
    for parameter in pair:
        parameter.grad = torch.full((1, 1), 0.5)
    optimizer.step(lambda: 1.0)
    # One step with m = 0.05 and v = 0.00025, whenever it is made.
    one = 0.01 * 0.05 / (0.00025**0.5 + 1e-6)
    assert pair[1].item() == pytest.approx(1 - one, rel=1e-5)
    assert pair[0].item() < 1 - 2 * one


def test_the_missing_correction_is_adamws_alone() -> None:
    with pytest.raises(InputError, match="bias_correction false is for adamw, not sgd"):
        OptimizerConfig("sgd", bias_correction=False)


def test_depths() -> None:
    model = CausalLM(CausalLMConfig(**{**TINY, "n_layers": 3}, vocab_size=20, max_len=6, tie=False))
    found, top = depths(model)
    assert top == 4
    assert found["embed.tokens.weight"] == found["embed.positions.weight"] == 0
    assert [found[f"stack.blocks.{i}.ff.up.bias"] for i in range(3)] == [1, 2, 3]
    assert found["stack.norm.weight"] == 3
    assert found["head.own.weight"] == 4
    pair, _ = depths(EncoderDecoder(EncoderDecoderConfig(**TINY, n_decoder_layers=2, vocab_size=9)))
    assert pair["src_embed.tokens.weight"] == 0
    towers, _ = depths(CLIP(CLIPConfig(**TINY, vocab_size=9, image_n_layers=1, image_d_model=8,
                                    image_n_heads=2, image_d_ff=8, image_size=32)))  # fmt: skip
    assert {towers[f"{t}_embed.positions.weight"] for t in ("text", "image")} == {0}
    assert (towers["image_norm.weight"], towers["image_stack.norm.bias"]) == (0, 1)
    assert towers["text_projection.weight"] == towers["log_scale"] == 2
    assert (pair["encoder.blocks.0.attn.q.weight"], pair["decoder.blocks.1.attn.q.bias"]) == (1, 2)
    stages, top = depths(ResNet(ResNetConfig(image_size=32, n_classes=2)))
    assert top == 5
    assert stages["net.conv1.weight"] == stages["net.bn1.bias"] == 0
    assert [stages[f"net.layer{i}.0.conv1.weight"] for i in range(1, 5)] == [1, 2, 3, 4]
    assert {name for name, depth in stages.items() if depth == top} == {
        "net.fc.weight", "net.fc.bias"
    }  # fmt: skip


def test_layer_decay() -> None:
    """ELECTRA, BEiT: the head learns at the full rate, each layer below at a fixed share of it."""
    model = CausalLM(CausalLMConfig(**{**TINY, "n_layers": 2}, vocab_size=20, max_len=6, tie=False))
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0, layer_decay=0.5))
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in model.named_parameters()}
    assert len(rates) == len(found)
    assert found["head.own.weight"] == 1.0
    assert found["stack.norm.weight"] == found["stack.blocks.1.attn.q.bias"] == 0.5
    assert found["stack.blocks.0.attn.q.weight"] == 0.25
    assert found["embed.tokens.weight"] == 0.125
    schedule = make_schedule(optimizer, ScheduleConfig("linear"), 1.0, 4, 8)
    optimizer.step()
    schedule.step()
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [
        share * 0.75 for share in (0.125, 0.25, 0.5, 1.0)
    ]


def test_nothing_to_train() -> None:
    with pytest.raises(InputError, match="every weight of the model is frozen"):
        make_optimizer(nn.Linear(2, 2).requires_grad_(False), OptimizerConfig())
