"""Learning-rate schedules, compared with the formulas of the papers."""

import math

import pytest
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from fourfold.errors import InputError
from fourfold.optim import OptimizerConfig, make_optimizer
from fourfold.schedules import ScheduleConfig, learning_rate_factor

D = 512


def rates(config: ScheduleConfig, lr: float, total: int, d_model: int = D) -> list[float]:
    """Return the learning rate at each step."""
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name="sgd", lr=lr))
    schedule = LambdaLR(optimizer, learning_rate_factor(config, lr, total, d_model))
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_noam_equals_equation_3() -> None:
    factor = learning_rate_factor(ScheduleConfig("noam", warmup_steps=4000), 1.0, 100000, D)
    for step in (1, 10, 3999, 4000, 4001, 100000):
        assert factor(step - 1) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    peak = max(range(20000), key=factor)
    assert peak + 1 == 4000
    assert factor(peak) == pytest.approx(6.987712e-04, rel=1e-6)


def test_noam_scales_with_lr() -> None:
    found = rates(ScheduleConfig("noam", warmup_steps=3), 2.0, 5, d_model=16)
    expected = [2 * 16**-0.5 * min(s**-0.5, s * 3**-1.5) for s in range(1, 6)]
    assert found == pytest.approx(expected)


def test_linear_schedule() -> None:
    found = rates(ScheduleConfig("linear", warmup_steps=4), 8.0, 12)
    assert found == pytest.approx([2, 4, 6, *(8 * (13 - step) / 9 for step in range(4, 13))])
    # Without a warm-up from the peak on, as transformers has it.
    assert rates(ScheduleConfig("linear"), 8.0, 4) == pytest.approx([8, 6, 4, 2])
    assert rates(ScheduleConfig("linear"), 8.0, 1) == [8.0]


def test_halving_schedules_of_the_recurrent_models() -> None:
    # Luong et al. 2015: halved after each of 10 epochs from the fifth on, or of 12 from the eighth.
    found = rates(ScheduleConfig("halving"), 1.0, 100)
    assert found == [0.5 ** max(0, epoch - 4) for epoch in range(10) for _ in range(10)]
    found = rates(ScheduleConfig("halving", halve_from=2 / 3, n_halvings=4), 1.0, 120)
    assert found == [0.5 ** max(0, epoch - 7) for epoch in range(12) for _ in range(10)]
    # Sutskever et al. 2014: halved every half epoch from the fifth of 7.5 epochs on.
    found = rates(ScheduleConfig("halving", halve_from=2 / 3), 0.7, 150)
    assert found == [0.7 * 0.5 ** max(0, half - 9) for half in range(15) for _ in range(10)]


def test_linear_from_start_schedule() -> None:
    """BERT's `polynomial_decay` falls from the first step on, also during the warm-up."""
    found = rates(ScheduleConfig("linear_from_start", warmup_steps=4), 8.0, 12)
    assert found == pytest.approx([2, 4, 6, *(8 * (13 - step) / 12 for step in range(4, 13))])
    assert rates(ScheduleConfig("linear_from_start"), 8.0, 4) == pytest.approx([8, 6, 4, 2])


def test_linear_schedule_ends_at_min_lr() -> None:
    found = rates(ScheduleConfig("linear", warmup_steps=2, min_lr=2.0), 8.0, 8)
    assert found == pytest.approx([4, *(2 + 6 * (9 - step) / 7 for step in range(2, 9))])


def test_cosine_schedule() -> None:
    found = rates(ScheduleConfig("cosine", warmup_steps=2, min_lr=1.0), 5.0, 10)
    decay = [1 + 4 * 0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(9)]
    assert found == pytest.approx([2.5, *decay])
    assert found[1] == pytest.approx(5)
    assert found[5] == pytest.approx(3)  # half-way down
    assert found[-1] == pytest.approx(1)


def test_wsd_schedule() -> None:
    """Hu et al. 2024: linear warm-up, a stable phase, then a decay."""
    found = rates(ScheduleConfig("wsd", warmup_steps=2, decay_from=0.5), 8.0, 10)
    assert found == pytest.approx([4, 8, 8, 8, 8, *(8 * (11 - step) / 6 for step in range(6, 11))])
    found = rates(ScheduleConfig("wsd", min_lr=2.0), 8.0, 10)  # a tenth of the steps decays
    assert found == pytest.approx([8.0] * 9 + [5.0])
    # The decay begins after the warm-up, and a continued training stays at the minimum.
    assert rates(ScheduleConfig("wsd", warmup_steps=3, decay_from=0.0), 3.0, 6) == pytest.approx(
        [1, 2, 3, 2.25, 1.5, 0.75]
    )
    found = rates(ScheduleConfig("wsd", total_steps=4, min_lr=1.0, decay_from=0.5), 4.0, 6)
    assert found == pytest.approx([4, 4, 3, 2, 1, 1])


def test_inverse_sqrt_schedule() -> None:
    found = rates(ScheduleConfig("inverse_sqrt", warmup_steps=4), 6.0, 16)
    assert found[:4] == pytest.approx([1.5, 3, 4.5, 6])
    assert found[15] == pytest.approx(3)
    assert found == pytest.approx([6 * min(s / 4, (4 / s) ** 0.5) for s in range(1, 17)])


def test_constant_schedule() -> None:
    assert rates(ScheduleConfig(), 3.0, 4) == [3.0] * 4
    assert rates(ScheduleConfig(warmup_steps=2), 3.0, 4) == pytest.approx([1.5, 3, 3, 3])


def test_total_steps_sets_the_end() -> None:
    found = rates(ScheduleConfig("linear", total_steps=4), 4.0, 6)
    assert found == pytest.approx([4, 3, 2, 1, 0, 0])
    found = rates(ScheduleConfig("cosine", total_steps=2, min_lr=1.0), 4.0, 4)
    assert found[1:] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("name", ["noam", "inverse_sqrt", "linear", "cosine", "constant", "wsd"])
def test_schedules_without_warmup_are_finite(name: str) -> None:
    found = rates(ScheduleConfig(name), 1.0, 3)
    assert all(math.isfinite(rate) and rate >= 0 for rate in found)
    assert found == sorted(found, reverse=True)


def test_resumed_schedule_continues() -> None:
    config, model = ScheduleConfig("cosine", warmup_steps=2), nn.Linear(2, 2)
    whole = rates(config, 1.0, 8)
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0))
    schedule = LambdaLR(optimizer, learning_rate_factor(config, 1.0, 8, D))
    for _ in range(3):
        optimizer.step()
        schedule.step()
    saved = optimizer.state_dict(), schedule.state_dict()
    optimizer = make_optimizer(model, OptimizerConfig(lr=1.0))
    schedule = LambdaLR(optimizer, learning_rate_factor(config, 1.0, 8, D))
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(whole[3])
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(whole[4])


def test_contradictory_schedules_are_rejected() -> None:
    with pytest.raises(
        InputError, match=r"warmup_steps must be less than schedule.total_steps \(5\), got 10"
    ):
        ScheduleConfig("linear", warmup_steps=10, total_steps=5)
    with pytest.raises(
        InputError, match=r"min_lr must be at most optimizer.lr \(0\.001\), got 0\.01"
    ):
        learning_rate_factor(ScheduleConfig("cosine", min_lr=1e-2), 1e-3, 10, D)


def test_unknown_schedule_is_rejected() -> None:
    with pytest.raises(InputError, match=r"schedule.name must be one of constant.* got 'step'"):
        ScheduleConfig(name="step")
