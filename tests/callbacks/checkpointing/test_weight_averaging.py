from pathlib import Path
from types import SimpleNamespace

import torch
from lightning import LightningModule

from fourfold.callbacks.checkpointing.weight_averaging import (
    CheckpointAveraging,
    ExponentialMovingAverage,
    average_state_dicts,
)


def write_snapshot(folder: Path, step: int, value: float, count: int) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"step={step:08d}.pt"
    state = {"w": torch.full((2,), value), "n": torch.tensor(count)}
    torch.save({"state_dict": state}, file)
    return file


def test_mean_of_floating_point_tensors(tmp_path: Path) -> None:
    files = [
        write_snapshot(tmp_path, step, value, step)
        for step, value in ((1, 1.0), (2, 2.0), (3, 6.0))
    ]
    mean = average_state_dicts(files)
    assert torch.equal(mean["w"], torch.full((2,), 3.0))
    assert mean["w"].dtype == torch.float32
    assert mean["n"] == 3  # integers are not averaged


def test_bfloat16_is_summed_in_float64(tmp_path: Path) -> None:
    files = []
    for step, value in enumerate([1.0, 1.0078125, 1.0078125, 1.0]):
        files.append(tmp_path / f"{step}.pt")
        state = {"w": torch.tensor(value, dtype=torch.bfloat16)}
        torch.save({"state_dict": state}, files[-1])
    mean = average_state_dicts(files)["w"]
    assert mean.dtype == torch.bfloat16
    assert mean == torch.tensor(1.00390625).to(torch.bfloat16)


def test_resume_deletes_later_snapshots(tmp_path: Path) -> None:
    average = CheckpointAveraging(3, None, tmp_path)
    for step in (10, 20, 30):
        write_snapshot(average.snapshots, step, 1.0, 0)
    trainer = SimpleNamespace(is_global_zero=True, global_step=20)
    average.on_train_start(trainer, None)  # type: ignore[arg-type]
    assert sorted(file.stem for file in average.snapshots.iterdir()) == [
        "step=00000010",
        "step=00000020",
    ]


def test_moving_average_is_on_the_device_of_the_strategy() -> None:
    average = ExponentialMovingAverage(0.9)
    strategy = SimpleNamespace(root_device=torch.device("meta"))
    trainer = SimpleNamespace(strategy=strategy, precision="32-true", fast_dev_run=False)
    module = LightningModule()
    module.layer = torch.nn.Linear(2, 2)
    average.setup(trainer, module, "fit")  # type: ignore[arg-type]
    assert next(vars(average)["_average_model"].parameters()).device == torch.device("meta")
