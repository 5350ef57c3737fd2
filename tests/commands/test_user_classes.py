"""A user's Task and DataModule through fit, SIGKILL, resume, test, generate and fourfold.load."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fourfold
from fourfold.callbacks.checkpointing.exact_resume import _warn_of_plain_data

Run = Callable[..., Any]

TASK = '''
import torch

from fourfold.core.masks import mask_and_positions
from fourfold.models import CausalLM
from fourfold.tasks import CausalLanguageModeling


class AlibiLM(CausalLM):
    """CausalLM whose attention scores decrease linearly with the distance of two tokens."""

    def hidden(self, ids, mask=None, cache=None, documents=None):
        attention_mask, positions = mask_and_positions(ids, mask, documents, cache, causal=True)
        n_keys = ids.shape[1] if cache is None else cache.length
        keys = torch.arange(n_keys, device=ids.device)
        distances = keys[None] - keys[n_keys - ids.shape[1] :, None]
        heads = torch.arange(1, self.config.n_heads + 1, device=ids.device)
        slopes = 2.0 ** (-8 * heads / self.config.n_heads)
        bias = (slopes[:, None, None] * distances)[None]
        return self.stack(self.embed(ids, positions), attention_mask, bias=bias, cache=cache)


class AlibiTask(CausalLanguageModeling):
    """Causal language modelling with ALiBi (Press et al. 2022)."""

    model_class = AlibiLM
'''

DATA = '''
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from fourfold.data.loading.batches import CausalBatch


class NumberData(LightningDataModule):
    """Sequences that count upwards modulo 20."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def _loader(self) -> DataLoader:
        rows = (torch.arange(64)[:, None] + torch.arange(13)) % 20

        def collate(batch: list[torch.Tensor]) -> CausalBatch:
            ids = torch.stack(batch)
            return CausalBatch(ids[:, :-1], ids[:, 1:])

        return DataLoader(list(rows), batch_size=self.batch_size, collate_fn=collate)

    train_dataloader = val_dataloader = test_dataloader = _loader
'''


@pytest.fixture
def modules(here: Path) -> Iterator[Path]:
    """The current directory with the user's modules alibi.py and numbers_data.py."""
    (here / "alibi.py").write_text(TASK)
    (here / "numbers_data.py").write_text(DATA)
    search_path = list(sys.path)
    yield here
    sys.path[:] = search_path
    for name in ("alibi", "numbers_data", "mistake"):
        sys.modules.pop(name, None)


def write_config(folder: Path, text: Path, **data: Any) -> Path:
    splits = {name: str(text / f"{name}.en") for name in ("train", "val", "test")}
    own = {"source": "files", "block_size": 16, "batch_size": 4, "tokenizer": {"vocab_size": 60}}
    config = {
        "model": {
            "class_path": "alibi.AlibiTask",
            "init_args": {
                "config": {
                    "d_model": 16,
                    "n_layers": 1,
                    "n_heads": 2,
                    "d_ff": 32,
                    "max_len": 16,
                    "vocab_size": None,
                    "positions": "none",
                }
            },
        },
        "data": data or {"class_path": "fourfold.data.CausalTextData", "init_args": own | splits},
        "trainer": {"max_steps": 30, "accelerator": "cpu", "enable_progress_bar": False},
        "checkpoint": {"every_n_steps": 1},
        "tensorboard": False,
        "log_samples": False,
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def fit_and_kill(config: Path, run_dir: str) -> None:
    """Start a training in a subprocess and kill it after its first checkpoint."""
    command = [sys.executable, "-m", "fourfold", "fit", "--config", str(config)]
    child = subprocess.Popen([*command, "--run_dir", run_dir], env=dict(os.environ))
    last = Path(run_dir) / "checkpoints/last.ckpt"
    end = time.monotonic() + 120
    while not last.exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert last.exists()


ALLOW = ("--allow_class", "alibi.AlibiTask", "--allow_class", "alibi.AlibiLM")


@pytest.mark.timeout(300)
def test_user_task_resumes_after_a_kill_and_is_tested_used_and_loaded(
    run: Run, modules: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(modules, text)
    fit_and_kill(config, "killed")
    for run_dir in ("killed", "whole"):
        result = run("fit", "--config", config, "--run_dir", run_dir)
        assert result.code == 0, result.err
    states = [
        torch.load(modules / run_dir / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for run_dir in ("killed", "whole")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

    result = run("test", "--run_dir", "killed")
    assert result.code == 0, result.err
    assert "test/loss" in result.out
    result = run("plan", "--run-dir", "killed")
    assert result.code == 0, result.err
    assert "AlibiLM" in result.out

    with (modules / "prompts.txt").open("wb") as file:
        file.write(b"one two\n")
    for allowed, code in ((ALLOW, 0), ((), 2)):
        with (modules / "prompts.txt").open() as prompts:
            monkeypatch.setattr(sys, "stdin", prompts)
            result = run("generate", "--checkpoint", "killed", "--max-new-tokens", 3, *allowed)
        assert result.code == code, result.err
    assert "--allow_class alibi.AlibiLM" in result.err

    from alibi import AlibiLM

    model = fourfold.load("killed", classes=[AlibiLM])
    assert type(model) is AlibiLM
    assert model(torch.tensor([[1, 2, 3]])).shape[:2] == (1, 3)


@pytest.mark.timeout(300)
def test_plain_datamodule_is_trained_resumed_and_tested(
    run: Run, modules: Path, text: Path
) -> None:
    config = write_config(modules, text, class_path="numbers_data.NumberData", init_args={})
    call = ("--config", config, "--run_dir", "r", "--model.config.vocab_size=20")
    _warn_of_plain_data.cache_clear()
    with pytest.warns(UserWarning, match="NumberData is not a ResumableDataModule"):
        result = run("fit", *call, "--trainer.max_steps=4")
    assert result.code == 0, result.err
    result = run("fit", *call, "--trainer.max_steps=12")
    assert result.code == 0, result.err
    last = torch.load(modules / "r/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 12
    result = run("test", "--run_dir", "r")
    assert result.code == 0, result.err


MISTAKES = {
    "ValueError": "raise ValueError('mistake of the user')",
    "KeyError": "{}['mistake of the user']",
    "OSError": "raise OSError(5, 'mistake of the user', 'file')",
}
CLASSES = """
from lightning import Callback
from fourfold.data import CausalTextData
from fourfold.tasks import CausalLanguageModeling

class Task(CausalLanguageModeling):
    def {task_method}:
        {task_mistake}

class Data(CausalTextData):
    def {data_method}:
        {data_mistake}

class Mistake(Callback):
    def on_train_start(self, trainer, task):
        {callback_mistake}
"""


@pytest.mark.parametrize("error", MISTAKES)
@pytest.mark.parametrize("place", ["task", "data", "callback", "constructor"])
def test_exception_of_a_user_keeps_its_traceback(
    place: str, error: str, run: Run, modules: Path, configs: dict[str, Path]
) -> None:
    statement = MISTAKES[error]
    arguments = {f"{name}_mistake": "pass" for name in ("task", "data", "callback")}
    arguments |= {"task_method": "other(self)", "data_method": "other(self)"}
    if place == "task":
        arguments |= {"task_method": "step(self, batch)", "task_mistake": statement}
    elif place == "data":
        arguments |= {"data_method": "setup(self, stage)", "data_mistake": statement}
    elif place == "callback":
        arguments["callback_mistake"] = statement
    else:
        arguments["task_mistake"] = statement
        arguments["task_method"] = "__init__(self, config: CausalLMConfig) -> None"
    source = "from fourfold.models import CausalLMConfig\n" + CLASSES.format(**arguments)
    (modules / "mistake.py").write_text(source)
    options = ["--model=mistake.Task", "--data=mistake.Data"]
    options += ["--trainer.callbacks+={class_path: mistake.Mistake}", "--run_dir=r"]
    with pytest.raises((ValueError, KeyError, OSError)) as raised:
        run("fit", "--config", configs["lm"], *options)
    assert type(raised.value).__name__ == error
    assert raised.traceback[-1].path.name == "mistake.py"


@pytest.mark.parametrize("section", ["model", "data", "trainer.callbacks+"])
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_package", ModuleNotFoundError),
        ("x = = 1", SyntaxError),
        ("undefined_name", NameError),
    ],
)
def test_exception_at_the_import_of_a_users_module_keeps_its_traceback(
    section: str,
    source: str,
    error: type[Exception],
    run: Run,
    modules: Path,
    configs: dict[str, Path],
) -> None:
    (modules / "mistake.py").write_text(f"{source}\n")
    with pytest.raises(error):
        run("fit", "--config", configs["lm"], f"--{section}=mistake.Class")
