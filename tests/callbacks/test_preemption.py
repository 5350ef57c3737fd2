"""Who ends with which code; that a signal is heard on all ranks is in tests/commands."""

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from fourfold.callbacks.preemption import _is_heard


@pytest.mark.parametrize(
    ("environment", "rank", "heard"),
    [
        # Two nodes of two processes each.
        (LightningEnvironment, (0, 0), True),
        (LightningEnvironment, (1, 1), False),
        (LightningEnvironment, (2, 0), True),
        (TorchElasticEnvironment, (0, 0), True),
        (TorchElasticEnvironment, (1, 1), False),
        (TorchElasticEnvironment, (2, 0), False),
    ],
)
def test_one_process_ends_for_all(environment: Any, rank: tuple[int, int], heard: bool) -> None:
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(cluster_environment=environment()),
        local_rank=rank[1],
        is_global_zero=rank[0] == 0,
    )
    assert _is_heard(trainer) == heard
