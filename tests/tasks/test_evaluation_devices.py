"""Every metric is the same, to the last digit, on one process and on several."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from scripts.tiny_tasks import TASKS
from tests.processes import together

ROWS = {"images": 100, "captions": 100, "image and text": 100,
        "translation": 3, "text to text": 3, "joined": 3}  # fmt: skip


def evaluate(family: str, texts: Path, folder: Path, world: int) -> dict[str, Any]:
    """Metrics of a test by weights that are noise; in fp32, where sums are seldom exact."""
    torch.manual_seed(0)
    task, data = TASKS[family](texts, max_rows=ROWS.get(family, 7))
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, devices=world,
        strategy="ddp" if world > 1 else "auto", default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.test(task, data, verbose=False)
    return task.summary


# Seconds each; the others' evaluation has nothing that is not in one of the quick ones.
QUICK = ("causal LM", "masked LM", "sentence pairs", "sequences", "scores", "tokens", "questions")
SLOW = tuple(set(TASKS) - set(QUICK))


@pytest.mark.parametrize(
    "families", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_metrics_do_not_depend_on_the_processes(
    families: tuple[str, ...], texts: Path, tmp_path: Path
) -> None:
    def work(world: int) -> Any:
        def run(rank: int) -> None:
            found = {family: evaluate(family, texts, tmp_path, world) for family in families}
            torch.save(found, tmp_path / f"{world}_{rank}.pt")

        return run

    for world in (1, 2, 3):
        ended = together(world, work(world), tmp_path)
        assert [end.code for end in ended] == [0] * world, ended
    alone = torch.load(tmp_path / "1_0.pt", weights_only=False)
    assert set(alone) == set(families)
    for world, rank in ((2, 0), (2, 1), (3, 0), (3, 2)):
        found = torch.load(tmp_path / f"{world}_{rank}.pt", weights_only=False)
        for family, metrics in alone.items():
            assert found[family] == metrics, (family, world)
