"""A loss that is not finite stops training before the step, and can be looked at again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoints.files import read_file

Run = Callable[..., Any]
OPTIONS = ("--trainer.max_steps=10", "--checkpoint.every_n_steps=1", "--model.val_num_beams=0")


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes one weight infinite before the batch of that number."""
    from fourfold.tasks import Translation

    step = Translation.training_step

    def prepare(number: int) -> None:
        def spoilt(self: Any, batch: Any, batch_idx: int) -> Any:
            if self.trainer.fit_loop.total_batch_idx == number:
                self.model.encoder.blocks[0].ff.down.weight.data[0] = torch.inf
            return step(self, batch, batch_idx)

        monkeypatch.setattr(Translation, "training_step", spoilt)

    return prepare


@pytest.mark.parametrize(("accumulated", "batch", "step"), [(1, 3, 4), (2, 6, 5), (3, 7, 3)])
def test_nonfinite_loss_stops_before_the_step_and_saves_the_batch(
    accumulated: int,
    batch: int,
    step: int,
    run: Run,
    configs: dict[str, Path],
    here: Path,
    break_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = (*OPTIONS, f"--trainer.accumulate_grad_batches={accumulated}", "--run_dir=r")
    with monkeypatch.context():
        break_at(batch)
        stopped = run("fit", "--config", configs["mt"], *more)
    assert stopped.code == 1
    assert f"stopped: the loss of step {step} is not a finite number" in stopped.err
    assert "Traceback" not in stopped.err
    last = torch.load(here / "r/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == step - 1
    assert all(weight.isfinite().all() for weight in last["state_dict"].values())
    file = here / f"r/nonfinite_step={step:08d}.pt"
    assert f"fourfold replay {file.relative_to(here)}" in stopped.out
    kept = torch.load(file, weights_only=True)
    # With accumulation, later batches of the step are not finite, either; the first is saved.
    assert kept["replay"]["seed"] == batch * 7_919

    break_at(-1)
    again = run("replay", file)
    assert again.code == 0, again.err
    assert f"step {step}, batch " in again.out
    assert "the weights are not finite: encoder.blocks.0.ff.down.weight" in again.out
    assert "first output that is not finite: model.encoder.blocks.0.ff.down" in again.out
    assert "loss nan" in again.out


def test_overflow_in_half_precision_only(
    run: Run, configs: dict[str, Path], here: Path, break_at: Callable[[int], None]
) -> None:
    break_at(2)
    assert run("fit", "--config", configs["mt"], *OPTIONS, "--run_dir=r").code == 1
    file = here / "r/nonfinite_step=00000003.pt"
    content = read_file(file)
    # The sum exceeds the largest number of bf16, 3.39e38, but not that of fp32.
    weight = content["state_dict"]["model.encoder.blocks.0.ff.down.weight"]
    weight.zero_()
    content["state_dict"]["model.encoder.blocks.0.ff.down.bias"].fill_(3.4e38)
    content["replay"]["precision"] = "bf16-mixed"
    torch.save(content, file)
    out = run("replay", file).out
    first, second = out.split("the same batch in 32-true")
    assert "first output that is not finite: model.encoder.blocks.0.ff.down" in first
    assert "first output that is not finite: model.encoder.blocks.0.ff.down" not in second
    assert "64-true on cpu" in run("replay", file, "--precision", "64-true").out
    invalid = run("replay", file, "--precision", "bf16")
    assert invalid.code == 2
    assert "--precision: invalid choice: 'bf16'" in invalid.err


def test_replay_of_images_in_half_precision(run: Run, configs: dict[str, Path], here: Path) -> None:
    more = ("--trainer.precision=bf16-true", "--model.optimizer.lr=1e30", "--run_dir=r")
    assert run("fit", "--config", configs["vit"], "--trainer.max_steps=10", *more).code == 1
    (file,) = here.glob("r/nonfinite_step=*.pt")
    result = run("replay", file)
    assert result.code == 0, result.err
    assert "bf16-true on cpu" in result.out
    assert "the same batch in 32-true" in result.out


def test_replay_rejects_other_files(run: Run, trained: Callable[[str], Path], here: Path) -> None:
    for file in (trained("mt") / "checkpoints/last.ckpt", trained("mt") / "config.yaml"):
        result = run("replay", file)
        assert result.code == 2
        assert result.err.count("\n") == 1
    assert run("replay", "gone.pt").code == 2
    assert run("replay").code == 2
    assert run("replay", "--help").code == 0


@pytest.mark.parametrize("family", ["vit", "mt", "lm", "mlm", "classes", "tags"])
def test_every_family_can_be_replayed(
    family: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    options = (
        "--model.optimizer.lr=1e30",
        "--trainer.max_steps=6",
        "--trainer.precision=bf16-mixed",
    )
    stopped = run("fit", "--config", configs[family], *options, "--run_dir=r")
    assert stopped.code == 1
    (file,) = (here / "r").glob("nonfinite_step=*.pt")
    again = run("replay", file)
    assert again.code == 0, again.err
    assert "first output that is not finite: model." in again.out
    assert "the same batch in 32-true" in again.out
