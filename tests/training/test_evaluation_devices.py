"""Metrics are bitwise equal with one process and with several, also if weights are sharded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import TASKS

ROWS = {
    "images": 100,
    "masked images": 100,
    "captions": 100,
    "recurrent captions": 100,
    "image and text": 100,
    "translation": 3,
    "text to text": 3,
    "joined": 3,
}


def evaluate(family: str, texts: Path, folder: Path, world: int, strategy: str) -> dict[str, Any]:
    """Return the test metrics of random weights in fp32, where sums are rounded."""
    torch.manual_seed(0)
    task, data = TASKS[family](texts, max_rows=ROWS.get(family, 7))
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        devices=world,
        strategy=strategy,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.test(task, data, verbose=False)
    return task.summary


# These take seconds. A step of masked images calls the model, which FSDP2 treats differently. The
# evaluation of the other tasks has no code of its own.
QUICK = (
    *("causal LM", "masked LM", "sentence pairs", "sequences", "scores", "tokens", "questions"),
    "documents",
    "masked images",
)
SLOW = tuple(set(TASKS) - set(QUICK))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "families", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_metrics_do_not_depend_on_the_number_of_processes(
    families: tuple[str, ...], texts: Path, tmp_path: Path
) -> None:
    def work(world: int, strategy: str) -> Any:
        def run(rank: int) -> None:
            found = {
                family: evaluate(family, texts, tmp_path, world, strategy) for family in families
            }
            torch.save(found, tmp_path / f"{strategy}{world}_{rank}.pt")

        return run

    # With three ranks, some have a batch more than others, and shards of different sizes.
    for world, strategy in ((1, "auto"), (2, "ddp"), (3, "ddp"), (3, "fsdp2")):
        ended = together(world, work(world, strategy), tmp_path, timeout=240)
        assert [end.code for end in ended] == [0] * world, ended
    alone = torch.load(tmp_path / "auto1_0.pt", weights_only=False)
    assert set(alone) == set(families)
    for name in ("ddp2_0", "ddp2_1", "ddp3_0", "ddp3_2", "fsdp23_0", "fsdp23_2"):
        found = torch.load(tmp_path / f"{name}.pt", weights_only=False)
        for family, metrics in alone.items():
            assert found[family] == metrics, (family, name)
