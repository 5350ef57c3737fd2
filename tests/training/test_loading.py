"""Tasks loaded from checkpoints, among them tasks and DataModules of a user."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningDataModule, Trainer
from torch.utils.data import DataLoader

import fourfold
from fourfold.data.loading.batches import CausalBatch
from fourfold.errors import InputError
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.tasks import (
    CausalLanguageModeling,
    ImageClassification,
    MaskedImageModeling,
    Task,
    load_task,
)
from fourfold.training.loading import find_task_class
from tests.fixtures.tiny_tasks import FLAT, SGD, SMALL, TASKS

V = 11
# A user's package, with an option that is stored in an attribute of the same name.
PACKAGE = """
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.data.loading.batches import CausalBatch
from fourfold.tasks import CausalLanguageModeling, Task


class ScaledLM(CausalLM):
    scale = 1.0

    def hidden(self, *args, **kwargs):
        return self.scale * super().hidden(*args, **kwargs)


class ScaledTask(CausalLanguageModeling):
    model_class = ScaledLM

    def __init__(self, config: CausalLMConfig, optimizer: OptimizerConfig,
                 schedule: ScheduleConfig, scale: float = 1.0, **options):
        super().__init__(config, optimizer, schedule, **options)
        self.scale = scale

    def configure_model(self) -> None:
        super().configure_model()
        self.model.scale = self.scale


class FixedTask(CausalLanguageModeling):
    def __init__(self, config: CausalLMConfig):
        super().__init__(config, OptimizerConfig(name="sgd"), ScheduleConfig("constant"))


class OwnTask(Task):
    model_class = CausalLM
    batch_class = CausalBatch

    def __init__(
        self,
        config: CausalLMConfig = CausalLMConfig(),
        optimizer: OptimizerConfig = OptimizerConfig(),
        schedule: ScheduleConfig = ScheduleConfig("constant"),
    ) -> None:
        super().__init__(config, optimizer, schedule)

    def step(self, batch):
        hidden = self.model.hidden(batch.ids)
        return self.model.head.loss(hidden, batch.targets), batch.targets.numel()

    def update_metrics(self, batch, split):
        self.last = self.step(batch)[0].detach()

    def compute_metrics(self, split):
        return {"loss": self.last, "one": self.last[None] * 0 + 1, "vector": self.last.expand(3)}
"""


class PlainData(LightningDataModule):
    """A DataModule without splits, artifacts, vocab_size or batch_class."""

    def loader(self) -> DataLoader[Any]:
        ids = torch.arange(40).view(4, 10) % V
        batch = CausalBatch(ids, ids.roll(-1, 1), n_bytes=40, n_words=8)
        return DataLoader([batch], batch_size=None)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader()

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader()

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader()


def make_trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@pytest.fixture
def scaled_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class `usermodels.ScaledTask`."""
    (tmp_path / "usermodels.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "usermodels", raising=False)
    from usermodels import ScaledTask

    return ScaledTask


def test_task_of_the_user_is_loaded_if_allowed(scaled_task: Any, tmp_path: Path) -> None:
    config = CausalLMConfig(**SMALL, vocab_size=V, max_len=16)
    task = scaled_task(config, SGD, FLAT, scale=0.5)
    trainer = make_trainer(tmp_path)
    trainer.fit(task, PlainData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["fourfold"]
    assert saved["task"]["class"] == "usermodels.ScaledTask"
    assert saved["task"]["init_args"]["scale"] == 0.5
    assert saved["model"]["class"] == "usermodels.ScaledLM"
    with pytest.raises(InputError, match=r"a\.ckpt: .*--allow_class usermodels\.ScaledTask"):
        load_task(tmp_path / "a.ckpt")
    ids = torch.randint(V, (2, 5))
    for allowed in (scaled_task, "usermodels.ScaledTask"):
        again: Any = load_task(tmp_path / "a.ckpt", classes=[allowed])
        assert type(again) is scaled_task
        assert again.scale == 0.5
        with torch.no_grad():
            assert torch.equal(again.model(ids), task.model.eval()(ids))
    with pytest.raises(InputError, match=r"--allow_class usermodels\.ScaledLM"):
        fourfold.load(tmp_path / "a.ckpt")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_loaded_by_its_class(name: str, texts: Path, tmp_path: Path) -> None:
    """`load_from_checkpoint` of the class itself and of `Task`, as Lightning documents it."""
    task, data = TASKS[name](texts)
    file = tmp_path / "a.ckpt"
    trainer = make_trainer(tmp_path, limit_train_batches=1, limit_val_batches=0)
    trainer.fit(task, data)
    trainer.save_checkpoint(file)
    for cls in (type(task), Task):
        loaded: Any = cls.load_from_checkpoint(file)
        assert type(loaded) is type(task)
        assert loaded.training
        assert loaded.init_args() == task.init_args()
        assert loaded.config == task.config
        assert loaded.artifacts == task.artifacts
        torch.testing.assert_close(loaded.state_dict(), task.state_dict(), rtol=0, atol=0)
    changed: Any = type(task).load_from_checkpoint(file, optimizer={"lr": 0.125}, schedule=FLAT)
    assert changed.optimizer == replace(task.optimizer, lr=0.125)
    wrong = MaskedImageModeling if name != "masked images" else ImageClassification
    with pytest.raises(InputError, match=r"a\.ckpt: the checkpoint holds the task"):
        wrong.load_from_checkpoint(file)
    with pytest.raises(InputError, match="no_such_argument"):
        type(task).load_from_checkpoint(file, no_such_argument=1)


def test_arguments_replace_those_of_the_checkpoint(scaled_task: Any, tmp_path: Path) -> None:
    config = CausalLMConfig(**SMALL, vocab_size=V, max_len=16)
    trainer = make_trainer(tmp_path)
    trainer.fit(scaled_task(config, SGD, FLAT, scale=0.5), PlainData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    load = scaled_task.load_from_checkpoint
    assert load(tmp_path / "a.ckpt").model.scale == 0.5
    task = load(tmp_path / "a.ckpt", scale=2.0, config={"dropout": 0.25})
    assert (task.scale, task.model.scale, task.config) == (2.0, 2.0, replace(config, dropout=0.25))
    longer = replace(config, n_layers=config.n_layers + 1)
    with pytest.raises(InputError, match="the weights do not match"):
        load(tmp_path / "a.ckpt", config=longer)
    partial = load(tmp_path / "a.ckpt", config=longer, strict=False)
    weights = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    loaded = partial.state_dict()
    assert loaded.keys() > weights.keys()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    with pytest.raises(InputError, match=r"needs the class usermodels\.ScaledTask"):
        Task.load_from_checkpoint(tmp_path / "a.ckpt")
    from usermodels import FixedTask

    trainer = make_trainer(tmp_path)
    trainer.fit(FixedTask(config), PlainData())
    trainer.save_checkpoint(tmp_path / "b.ckpt")
    assert FixedTask.load_from_checkpoint(tmp_path / "b.ckpt").optimizer.name == "sgd"


def test_a_task_is_called_like_its_model() -> None:
    task = CausalLanguageModeling(CausalLMConfig(**SMALL, vocab_size=V, max_len=16), SGD, FLAT)
    ids = torch.randint(V, (2, 5))
    torch.manual_seed(0)
    logits = task(ids)  # builds the model
    with torch.no_grad():
        assert torch.equal(task.eval()(ids), task.model(ids))
    assert logits.shape == (2, 5, V)


def test_task_trains_and_resumes_with_a_plain_datamodule(scaled_task: Any, tmp_path: Path) -> None:
    config = CausalLMConfig(**SMALL, vocab_size=V, max_len=16)
    trainer = make_trainer(tmp_path)
    trainer.fit(scaled_task(config, SGD, FLAT), PlainData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    task = scaled_task(config, SGD, FLAT)
    resumed = make_trainer(tmp_path)
    resumed.fit_loop.max_epochs = 2
    resumed.fit(task, PlainData(), ckpt_path=tmp_path / "a.ckpt", weights_only=True)
    assert resumed.global_step == 2
    resumed.test(task, PlainData(), verbose=False)
    assert task.summary["test/loss"] > 0


def test_constructor_without_optimizer_is_called(scaled_task: Any, tmp_path: Path) -> None:
    fixed_task = sys.modules["usermodels"].FixedTask
    trainer = make_trainer(tmp_path)
    trainer.fit(fixed_task(CausalLMConfig(**SMALL, vocab_size=V, max_len=16)), PlainData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    task = load_task(tmp_path / "a.ckpt", classes=["usermodels.FixedTask"])
    assert task.optimizer.name == "sgd"
    assert type(fourfold.load(tmp_path / "a.ckpt")).__name__ == "CausalLM"


def test_metrics_may_be_tensors_and_the_config_class_is_that_of_the_default(
    scaled_task: Any, tmp_path: Path
) -> None:
    own_task = sys.modules["usermodels"].OwnTask
    task, trainer = (
        own_task(CausalLMConfig(**SMALL, vocab_size=V, max_len=16)),
        make_trainer(tmp_path),
    )
    trainer.fit(task, PlainData())
    assert float(trainer.callback_metrics["val/loss"]) == task.summary["val/loss"] > 0
    assert task.summary["val/one"] == 1
    assert set(trainer.callback_metrics) >= {"val/one"}
    assert "val/vector" not in trainer.callback_metrics
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    trainer.save_checkpoint(tmp_path / "run/checkpoints/last.ckpt")
    assert type(load_task(tmp_path / "run", classes=[own_task])) is own_task


def test_data_without_a_tokenizer_are_named(scaled_task: Any, tmp_path: Path) -> None:
    task = scaled_task(CausalLMConfig(**SMALL, vocab_size=V, max_len=16), SGD, FLAT)
    trainer = make_trainer(tmp_path)
    trainer.fit(task, PlainData())
    with pytest.raises(InputError, match="--data must have a tokenizer among its artifacts"):
        _ = task.tokenizer


def test_config_must_be_complete_without_sizes_from_the_data(
    scaled_task: Any, tmp_path: Path
) -> None:
    config = CausalLMConfig(**SMALL, vocab_size=None, max_len=16)
    message = r"model\.config\.vocab_size must be given: PlainData has no attribute vocab_size"
    with pytest.raises(InputError, match=message):
        make_trainer(tmp_path).fit(scaled_task(config, SGD, FLAT), PlainData())


@pytest.mark.parametrize(
    "name",
    [
        "fourfold.tasks.loading.load_task",
        "fourfold.tasks.nothing.Task",
        "fourfold.tasks.convert",
    ],
)
def test_only_tasks_of_the_package_are_imported(name: str) -> None:
    with pytest.raises(InputError, match="is not a task"):
        find_task_class(name, Path("a.ckpt"))


def test_classes_outside_of_the_package_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "danger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"allow its import with --allow_class danger\.Task"):
        find_task_class("danger.Task", Path("a.ckpt"))
    with pytest.raises(InputError, match="No module named 'nowhere'"):
        find_task_class("danger.Task", Path("a.ckpt"), ["nowhere.Task"])
    with pytest.raises(InputError, match="cannot import Task"):
        find_task_class("danger.Task", Path("a.ckpt"), ["Task"])


class Unannotated(CausalLM):
    def __init__(self, config):  # type: ignore[no-untyped-def]
        super().__init__(config)


class Declared(Unannotated):
    config_class = CausalLMConfig


@dataclass(frozen=True)
class OwnConfig(CausalLMConfig):
    extra: int = 1


class OwnAnnotated(Unannotated):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)


@pytest.mark.parametrize(
    ("model_class", "config_class"),
    [
        (Unannotated, CausalLMConfig),  # the annotation of the parent
        (Declared, CausalLMConfig),
        (OwnAnnotated, OwnConfig),
    ],
)
def test_a_model_of_the_user_is_loaded(model_class: Any, config_class: Any, tmp_path: Path) -> None:
    class Own(CausalLanguageModeling):
        pass

    Own.model_class = model_class
    Own.config_class = config_class
    task = Own(config_class(**SMALL, vocab_size=V, max_len=16), SGD, FLAT)
    trainer = make_trainer(tmp_path)
    trainer.fit(task, PlainData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    model = fourfold.load(tmp_path / "a.ckpt", classes=[model_class])
    assert type(model) is model_class
    assert model.config == task.config


def test_several_dataloaders_are_evaluated_together(tmp_path: Path) -> None:
    """The metrics are those of the examples of all DataLoaders."""

    class Several(PlainData):
        def __init__(self, n: int) -> None:
            super().__init__()
            ids = torch.arange(40).view(4, 10) % V
            sizes = (4,) if n == 1 else (1, 3)
            self.batches = [CausalBatch(x, x.roll(-1, 1)) for x in ids.split(sizes)]

        def val_dataloader(self) -> Any:
            return [DataLoader([batch], batch_size=None) for batch in self.batches]

        test_dataloader = val_dataloader

    task = CausalLanguageModeling(CausalLMConfig(**SMALL, vocab_size=V, max_len=16), SGD, FLAT)
    found = []
    for n in (1, 2):
        for action in ("validate", "test"):
            getattr(make_trainer(tmp_path), action)(task, Several(n), verbose=False)
            found.append(task.summary[f"{action[:3].replace('tes', 'test')}/loss"])
    assert found == pytest.approx(found[:1] * 4, rel=1e-6)
    make_trainer(tmp_path).fit(task, Several(2))
    assert "val/loss" in task.summary
