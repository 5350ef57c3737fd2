from pathlib import Path
from types import SimpleNamespace

import torch
from lightning import LightningModule

from fourfold.callbacks.averaging import AverageLast, mean_of
from fourfold.callbacks.ema import ExponentialAverage


def write(folder: Path, step: int, value: float, count: int) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"step={step:08d}.pt"
    state = {"w": torch.full((2,), value), "n": torch.tensor(count)}
    torch.save({"state_dict": state}, file)
    return file


def test_the_mean(tmp_path: Path) -> None:
    files = [write(tmp_path, step, value, step) for step, value in ((1, 1.0), (2, 2.0), (3, 6.0))]
    mean = mean_of(files)
    assert torch.equal(mean["w"], torch.full((2,), 3.0))
    assert mean["w"].dtype == torch.float32
    assert mean["n"] == 3  # counts are not averaged


def test_low_precision_is_summed_exactly(tmp_path: Path) -> None:
    files = []
    for step, value in enumerate([1.0, 1.0078125, 1.0078125, 1.0]):
        files.append(tmp_path / f"{step}.pt")
        state = {"w": torch.tensor(value, dtype=torch.bfloat16)}
        torch.save({"state_dict": state}, files[-1])
    mean = mean_of(files)["w"]
    assert mean.dtype == torch.bfloat16
    assert mean == torch.tensor(1.00390625).to(torch.bfloat16)


def test_snapshots_beyond_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    average = AverageLast(3, None, tmp_path)
    for step in (10, 20, 30):
        write(average.snapshots, step, 1.0, 0)
    trainer = SimpleNamespace(is_global_zero=True, global_step=20)
    average.on_train_start(trainer, None)  # type: ignore[arg-type]
    assert sorted(file.stem for file in average.snapshots.iterdir()) == [
        "step=00000010", "step=00000020",
    ]  # fmt: skip


def test_the_moving_average_lies_where_the_model_will_be() -> None:
    average = ExponentialAverage(0.9)
    strategy = SimpleNamespace(root_device=torch.device("meta"))
    trainer = SimpleNamespace(strategy=strategy, fast_dev_run=False)
    average.setup(trainer, LightningModule(), "validate")  # type: ignore[arg-type]
    assert average._device == torch.device("meta")
