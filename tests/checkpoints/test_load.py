"""Models from checkpoints, run directories and directories, without Lightning."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor

import fourfold
from fourfold.checkpoints.classes import class_path
from fourfold.errors import InputError
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.tasks import CausalLanguageModeling
from tests.fixtures.tiny_tasks import FAMILIES, FLAT, SGD, SMALL, causal

MAX_MODULES = 70


def train(task: Any, data: Any, folder: Path) -> Path:
    trainer = Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, data)
    path = folder / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    task, data = causal(texts)
    return train(task, data, tmp_path_factory.mktemp("causal"))


def test_load_imports_neither_lightning_nor_datamodules(checkpoint: Path) -> None:
    code = (
        "import sys, fourfold\n"
        f"model = fourfold.load({str(checkpoint)!r})\n"
        "assert model.tokenizer is not None\n"
        "modules = [name for name in sys.modules if name.split('.')[0] == 'fourfold']\n"
        "heavy = [name for name in sys.modules if name.split('.')[0] == 'lightning'\n"
        "         or 'datamodule' in name or name.startswith('fourfold.tasks')]\n"
        "assert not heavy, heavy\n"
        "print(len(modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < MAX_MODULES


def test_model_has_tokenizer_and_special_tokens(checkpoint: Path) -> None:
    for path in (checkpoint, checkpoint.parents[1]):
        model: Any = fourfold.load(path)
        assert not model.training
        assert model.tokenizer.decode(model.tokenizer.encode("one two")) == "one two"
        assert model.generation_defaults.eos_id == model.tokenizer.eos_id
        assert model.generation_defaults.num_beams is None
        assert "tokenizer" in model.artifacts


def test_generation_defaults_come_from_the_task(texts: Path, tmp_path: Path) -> None:
    task, data = FAMILIES["translation"](texts)
    model: Any = fourfold.load(train(task, data, tmp_path))
    defaults = model.generation_defaults
    assert (defaults.num_beams, defaults.length_penalty) == (2, 0.6)
    assert defaults.length_penalty_type == "gnmt"
    assert defaults.bos_id == model.tokenizer.bos_id


def test_dtype_and_device_are_set(checkpoint: Path) -> None:
    assert {p.dtype for p in fourfold.load(checkpoint).parameters()} == {torch.float32}
    for dtype in ("bfloat16", "torch.bfloat16", torch.bfloat16):
        model = fourfold.load(checkpoint, device="cpu", dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with pytest.raises(InputError, match=r"dtype must be one of float32, .* got 'bf16'"):
        fourfold.load(checkpoint, dtype="bf16")


def test_checkpoint_of_an_earlier_version_is_rejected(checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=True)
    saved = content["fourfold"]
    content["fourfold"] = {
        "version": 1,
        "task": "CausalLanguageModeling",
        "init_args": saved["task"]["init_args"],
        "data": saved["data"],
    }
    torch.save(content, tmp_path / "old.ckpt")
    with pytest.raises(InputError, match=r"old\.ckpt: .* by an earlier version of fourfold"):
        fourfold.load(tmp_path / "old.ckpt")


@dataclass(frozen=True)
class ShiftedConfig(CausalLMConfig):
    shift: float = 1.0


class ShiftedLM(CausalLM):
    """A user's model: the states of a causal LM plus a constant."""

    config_class = ShiftedConfig

    def hidden(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().hidden(*args, **kwargs) + self.config.shift


class ShiftedTask(CausalLanguageModeling):
    """A user's task."""

    model_class = ShiftedLM
    config_class = ShiftedConfig


def test_model_class_of_the_user_must_be_allowed(texts: Path, tmp_path: Path) -> None:
    _, data = causal(texts)
    config = ShiftedConfig(**SMALL, vocab_size=None, max_len=64, shift=3.0)
    task = ShiftedTask(config, SGD, FLAT)
    path = train(task, data, tmp_path)
    name = class_path(ShiftedLM)
    with pytest.raises(InputError, match=rf"last\.ckpt: .*--allow_class {name}"):
        fourfold.load(path)
    model = fourfold.load(path, classes=[ShiftedLM])
    assert type(model) is ShiftedLM
    assert model.config.shift == 3.0
    ids = torch.randint(data.vocab_size, (2, 5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), task.model.eval()(ids))
    fourfold.save(model, tmp_path / "saved")
    with pytest.raises(InputError, match=r"fourfold\.json: .*--allow_class"):
        fourfold.load(tmp_path / "saved")
    again = fourfold.load(tmp_path / "saved", classes=[ShiftedLM])
    assert again.config == model.config
