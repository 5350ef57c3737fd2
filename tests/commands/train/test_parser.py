from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

WRONG = {
    "--trainer.max_epohcs=3": "trainer.max_epohcs: there is no such key; did you mean"
    " trainer.max_epochs?",
    # A prefix is not an option.
    "--trainer.max_epoch=3": "trainer.max_epoch: there is no such key; did you mean"
    " trainer.max_epochs?",
    "--model.config.n_head=3": "model.config.n_head: there is no such key; did you mean"
    " model.config.n_heads?",
    "--trainer.max_steps=0": "trainer.max_steps is 0: there is nothing to train",
    "--model.config.d_modl=30": "did you mean model.config.d_model?",
    "--model.init_args.config.d_modl=30": "did you mean model.config.d_model?",
    "--model.label_smothing=0.1": "did you mean model.label_smoothing?",
    "--data.batchsize=3": "did you mean data.batch_size?",
    "--lr=1": "lr: there is no such key; did you mean model.optimizer.lr?",
    "--warmup_steps=1": "did you mean model.schedule.warmup_steps?",
    "--batch_size=3": "batch_size: there is no such key; did you mean data.batch_size?",
    "--checkpoint.keepbest=2": "did you mean checkpoint.keep_best?",
    "--model=ImageClasification": "there is no class ImageClasification; did you mean"
    " ImageClassification?",
    "--data=fourfold.data.ImagData": "did you mean ImageData?",
    "--trainer.callbacks=EarlyStoping": "did you mean EarlyStopping?",
    "--trainer.plugins=best": "trainer.plugins: there is no class best",
    "--trainer.max_epochs=three": "trainer.max_epochs is three, but must be a whole number or null",
    "--model.config.d_model=30.5": "model.config.d_model is 30.5, but must be a whole number",
    "--resume=yes": "resume is yes, but must be one of auto, must, never",
    "--trainer.precision=bf16-mixd": "did you mean bf16-mixed?",
    "extra": "extra: there is no such key",
    # Found when the parts are built.
    "--model.config.norm=layr": "norm is 'layr', but must be one of layer, rms; did you mean",
    "--model.config.d_model=33": "d_model 33 is not divisible by n_heads 2",
    "--data.seed=-1": "seed",
    "--trainer.accelerator=gpux": "accelerator='gpux'",
    "--ema_decay=2": "ema_decay is 2.0, but must lie between 0 and 1",
    "--average_last=-1": "average_last is -1",
    "--checkpoint.every_n_steps=0": "checkpoint.every_n_steps is 0, but must be at least 1",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_option_is_one_sentence(
    wrong: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["vit"], wrong)
    assert result.code == 2
    assert WRONG[wrong] in result.err
    assert result.err.startswith("fourfold: error: ")
    assert result.err.count("\n") == 1
    assert not list(here.iterdir())  # nothing half-written


FILES = {
    "modle: {}": "bad.yaml, line 1: modle: there is no such key; did you mean model?",
    "data:\n  init_args:\n    batchsize: 3": "bad.yaml, line 3: data.batchsize: there is no such",
    "trainer:\n  max_epoch: 3": "bad.yaml, line 2: trainer.max_epoch: there is no such key; did",
    "model:\n  init_args:\n    config:\n      d_modl: 3": "bad.yaml, line 4: model.config.d_modl",
    "model:\n  class_path: fourfold.tasks.Translaton": "no class fourfold.tasks.Translaton; did you"
    " mean Translation?",
    "data: {init_args: {transform: {crop: paded}}}": "data.transform.crop is paded, but must be one"
    " of none, padded, resized; did you mean padded?",
    "trainer: [1, 2": "bad.yaml, line 1: not valid YAML",
    "- model": "bad.yaml: a config must be a mapping",
    "": "bad.yaml: a config must be a mapping",
}


@pytest.mark.parametrize("content", FILES)
def test_a_wrong_config_is_named_with_its_line(
    content: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    (here / "bad.yaml").write_text(content)
    result = run("fit", "--config", configs["vit"], "--config", "bad.yaml")
    assert result.code == 2
    assert FILES[content] in result.err


def test_a_wrong_value_on_the_command_line_is_not_blamed_on_a_file(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["vit"], "--trainer.max_steps", "x")
    assert result.err.startswith("fourfold: error: trainer.max_steps is x")


def test_a_config_that_cannot_be_read(run: Run, here: Path) -> None:
    (here / "bytes.yaml").write_bytes(b"model: \xff")
    for name in ("nofile.yaml", "bytes.yaml"):
        result = run("fit", "--config", name)
        assert result.code == 2
        assert result.err.startswith(f"fourfold: error: {name}: ")


def test_model_and_data_must_be_given(run: Run, here: Path) -> None:
    assert "data and model must be given" in run("fit").err
