from types import SimpleNamespace
from typing import Any

from fourfold.callbacks.resume import step_seed


def trainer(seed: int, batch: int, rank: int) -> Any:
    return SimpleNamespace(
        datamodule=SimpleNamespace(seed=seed),
        fit_loop=SimpleNamespace(total_batch_idx=batch),
        global_rank=rank,
    )


def test_dropout_differs_between_seeds_steps_and_ranks() -> None:
    places = [(s, b, r) for s in (0, 1, 2, 12345) for b in range(300) for r in range(16)]
    seeds = [step_seed(trainer(*place)) for place in places]
    assert len(set(seeds)) == len(places)
    assert seeds == [step_seed(trainer(*place)) for place in places]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 0 <= step_seed(trainer(2**60, 10**9, 4096)) < 2**63
