"""Tasks of a ResNet on the command line: resume, evaluation, init_from, freezing."""

from pathlib import Path

import pytest
import torch

from fourfold.checkpoints.init_from import read_source
from fourfold.cli import main
from fourfold.tasks import load_task

SHORT = {
    "--trainer.accelerator": "cpu",
    "--trainer.devices": "1",
    "--trainer.limit_val_batches": "1",
    "--trainer.limit_test_batches": "1",
    "--trainer.max_epochs": "-1",
    "--data.init_args.batch_size": "8",
    "--model.init_args.schedule.name": "constant",
    "--checkpoint.every_n_steps": "1",
    "--tensorboard": "false",
}


@pytest.fixture(scope="module")
def config(root: Path) -> str:
    return str(root / "configs/resnet/tiny.yaml")


def words(run: Path, **more: str) -> list[str]:
    options = {**SHORT, "--run_dir": str(run), **{f"--trainer.{k}": v for k, v in more.items()}}
    return [word for option in options.items() for word in option]


@pytest.fixture(scope="module")
def trained(config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("resnet") / "run"
    assert main(["fit", "--config", config, *words(run, max_steps="3")]) == 0
    return run


def test_resumed_training_is_bitwise_equal(config: str, trained: Path, tmp_path: Path) -> None:
    for steps in ("1", "3"):
        assert main(["fit", "--config", config, *words(tmp_path / "run", max_steps=steps)]) == 0
    files = [run / "checkpoints/last.ckpt" for run in (trained, tmp_path / "run")]
    whole, resumed = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    assert whole.keys() == resumed.keys()
    assert any("running_mean" in name for name in whole)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_samples_have_no_attention_maps(
    config: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--config", config, *words(trained)]) == 0
    assert "test/top1" in capsys.readouterr().out
    names = {file.name for file in (trained / "test").rglob("*")}
    assert any(name.startswith("images") for name in names)
    assert not any("attention" in name for name in names)


def test_init_from_accepts_a_resnet_only(
    config: str, trained: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--model.init_args.init_from", str(trained)]
    fit = ["fit", "--config", config, *words(tmp_path / "a", max_steps="1")]
    assert main([*fit, *start]) == 0
    assert "loaded" in capsys.readouterr().out
    read_source.cache_clear()
    vit = str(root / "configs/vit/tiny.yaml")
    assert main(["fit", "--config", vit, *words(tmp_path / "b", max_steps="1"), *start]) == 2
    assert "d_model of the source must be that of the model, 64, got 512" in capsys.readouterr().err


def test_export_is_rejected(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = str(trained / "checkpoints/last.ckpt")
    assert main(["export", last, str(tmp_path / "out")]) == 2
    assert "ResNet cannot be exported to transformers" in capsys.readouterr().err
    assert type(load_task(last).model).__name__ == "ResNet"


def test_frozen_layers_keep_their_running_statistics(
    config: str, trained: Path, tmp_path: Path
) -> None:
    """Also after a validation, when Lightning restores the mode of each module."""
    read_source.cache_clear()
    tuning = ["--model.init_args.init_from", str(trained), "--model.init_args.tuning.freeze"]
    fit = ["fit", "--config", config, "--trainer.val_check_interval", "1"]
    weights = {}
    for freeze in ("all", "3"):
        assert main([*fit, *words(tmp_path / freeze, max_steps="2"), *tuning, freeze]) == 0
        weights[freeze] = load_task(tmp_path / freeze / "checkpoints/last.ckpt").model.state_dict()
    before = load_task(trained / "checkpoints/last.ckpt").model.state_dict()
    moved = {
        freeze: {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        for freeze, after in weights.items()
    }
    assert moved["all"] == {"net.fc.weight", "net.fc.bias"}
    assert moved["3"] == {name for name in before if name.startswith(("net.layer4.", "net.fc."))}


def test_gradual_unfreezing_keeps_running_statistics_of_frozen_layers(
    config: str, trained: Path, tmp_path: Path
) -> None:
    read_source.cache_clear()
    start = ["--model.init_args.init_from", str(trained)]
    fit = [
        "fit",
        "--config",
        config,
        *start,
        "--model.init_args.tuning.gradual_unfreezing_epochs",
        "1",
    ]
    before = load_task(trained / "checkpoints/last.ckpt").model.state_dict()
    for steps, learns in (("1", ("net.fc.",)), ("2", ("net.layer4.", "net.fc."))):
        run = tmp_path / steps
        assert main([*fit, *words(run, max_steps=steps, limit_train_batches="1")]) == 0
        after = load_task(run / "checkpoints/last.ckpt").model.state_dict()
        moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        assert moved == {name for name in before if name.startswith(learns)}
