"""`fourfold tune` and Lightning's Tuner: results as configs, agreement, no effect on a training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Trainer
from lightning.pytorch.tuner import Tuner

from fourfold.data import ImageData
from fourfold.errors import InputError
from fourfold.models import ViTConfig
from fourfold.tasks import ImageClassification

Run = Callable[..., Any]
SHORT = ("--trainer.accelerator", "cpu", "--tune.num_training", 20)


def make_task() -> ImageClassification:
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "n_classes": None}
    torch.manual_seed(0)
    return ImageClassification(ViTConfig(image_size=8, patch_size=4, n_channels=1, **shape))  # type: ignore[arg-type]


def make_trainer(folder: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(default_root_dir=folder, accelerator="cpu", max_steps=6, **quiet, **options)


def test_the_result_is_a_config(run: Run, configs: dict[str, Path], here: Path) -> None:
    assert (
        run("fit", "--config", configs["vit"], "--run_dir", "r", "--trainer.max_steps", 2).code == 0
    )
    before = {file: file.read_bytes() for file in (here / "r").rglob("*") if file.is_file()}
    result = run("tune", "lr_find", "--config", configs["vit"], "--run_dir", "r", *SHORT)
    assert result.code == 0, result.err
    found = yaml.safe_load((here / "r/tune/lr_find.yaml").read_text())
    lr = found["model"]["init_args"]["optimizer"]["lr"]
    assert 1e-8 < lr < 1
    assert f"model.optimizer.lr: {lr:g}" in result.out
    assert (here / "r/tune/lr_find.png").read_bytes()[:4] == b"\x89PNG"
    # The training of the run directory is as before, and resumes.
    assert {file: file.read_bytes() for file in before} == before
    assert sorted(x.name for x in (here / "r/tune").iterdir()) == ["lr_find.png", "lr_find.yaml"]
    call = ["--config", configs["vit"], "--trainer.max_steps", 4]
    assert "resum" in run("fit", *call, "--run_dir", "r").out
    # The same call gives the same value, and `fit` accepts it.
    again = run("tune", "lr_find", "--config", configs["vit"], "--run_dir", "q", *SHORT)
    assert f"model.optimizer.lr: {lr:g}" in again.out
    result = run("fit", *call, "--config", here / "r/tune/lr_find.yaml", "--run_dir", "new")
    assert result.code == 0, result.err
    content = yaml.safe_load((here / "new/config.yaml").read_text())
    assert content["model"]["init_args"]["optimizer"]["lr"] == lr


def test_options_may_be_in_a_config(run: Run, configs: dict[str, Path], here: Path) -> None:
    options = {"tune": {"mode": "power", "init_val": 8, "max_val": 32, "steps_per_trial": 1}}
    (here / "tune.yaml").write_text(yaml.safe_dump(options))
    call = ["--config", configs["lm"], "--config", here / "tune.yaml", "--run_dir", "r"]
    result = run("tune", "scale_batch_size", *call)
    assert result.code == 0, result.err
    found = yaml.safe_load((here / "r/tune/scale_batch_size.yaml").read_text())
    assert found["data"]["init_args"]["batch_size"] in (8, 16, 32)  # at most the number of rows
    assert run("fit", *call).code == 2  # `tune` is no section of a training
    call[1] = configs["mt"]
    names = ("--tune.batch_arg_name", "max_tokens", "--tune.init_val", 64, "--tune.max_val", 256)
    assert run("tune", "scale_batch_size", *call, *names).code == 0
    found = yaml.safe_load((here / "r/tune/scale_batch_size.yaml").read_text())
    assert found["data"]["init_args"]["max_tokens"] >= 64


def test_bad_input_is_reported(run: Run, configs: dict[str, Path], here: Path) -> None:
    for words, message in (
        (["--config", configs["vit"]], "the first argument of `fourfold tune` must be one of"),
        ([], "the first argument of `fourfold tune` must be one of"),
        (["lr_find", "--config", configs["vit"], "--tune.num", 3], "tune"),
        (["lr_find", "--config", configs["vit"], "--tune.mode", "no"], "tune: `mode` should"),
        (["scale_batch_size", "--config", configs["vit"], "--trainer.devices", 2], "distributed"),
    ):
        result = run("tune", *words, "--trainer.accelerator=cpu", "--run_dir=r")
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err
    assert not (here / "r/tune").exists()


def test_the_tuner_in_python(here: Path) -> None:
    task, data = make_task(), ImageData(batch_size=32)
    trainer = make_trainer(here)
    finder = Tuner(trainer).lr_find(task, datamodule=data, num_training=20)
    assert finder is not None
    assert len(finder.results["loss"]) == 20
    assert task.lr == task.optimizer.lr == finder.suggestion() != 1e-3
    assert Tuner(trainer).scale_batch_size(
        task, datamodule=data, steps_per_trial=1, init_val=16, max_val=64
    ) in (32, 64)
    assert data.n_train_batches() == -(-len(data.split("train")) // data.batch_size)
    # Training with the found values equals a training that was started with them.
    trainer.fit(task, datamodule=data)
    fresh = make_task()
    fresh.lr = task.lr
    make_trainer(here).fit(fresh, datamodule=ImageData(batch_size=data.batch_size))
    assert trainer.global_step == 6
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, task.state_dict()[name]), name


def test_a_new_batch_size_discards_the_batches() -> None:
    data = ImageData(batch_size=32, eval_batch_size=16)
    data.setup("fit")
    start = data.state_dict()
    data.mark_trained(0, 3)
    later = data.state_dict()
    data.batch_size = 8
    assert len(next(iter(data.train_dataloader())).labels) == 8
    assert len(next(iter(data.test_dataloader())).labels) == 16
    data.load_state_dict(start)  # nothing was trained
    with pytest.raises(InputError, match="must be those of the checkpoint to resume"):
        data.load_state_dict(later)
