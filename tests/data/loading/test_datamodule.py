import logging
from inspect import signature
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fourfold.core.errors import InputError
from fourfold.data import (
    CaptionData,
    CausalTextData,
    ImageData,
    MaskedTextData,
    QuestionData,
    SequenceData,
    StreamedTextData,
    TokenData,
    TranslationData,
)
from fourfold.data.datamodule import BatchDataset, EpochData
from fourfold.data.sampler import Plan

pytestmark = pytest.mark.filterwarnings("ignore")


class Numbers(NamedTuple):
    x: torch.Tensor
    epoch: int
    position: int


class NumberRows(BatchDataset):
    def __init__(self, plan):
        self.plan = plan

    def batch(self, index, epoch, position):
        return Numbers(torch.as_tensor(index), epoch, position)


class NumberData(EpochData):
    def __init__(self, seed=3, num_workers=0, n_rows=50):
        super().__init__(seed, num_workers)
        self.n_rows = n_rows

    def build(self):
        train = Plan(np.ones(self.n_rows), max_rows=7, seed=self.seed)
        val = Plan(np.ones(5), max_rows=2, shuffle=False)
        return {"train": NumberRows(train), "val": NumberRows(val)}

    def artifacts(self):
        return {}


class RenamedData(NumberData):
    pass


class Recorder(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, _):
        self.seen.append((batch.epoch, batch.position, batch.x.tolist()))
        return (self.weight * batch.x.float()).mean()

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Follow(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.datamodule.set_consumed(batch.epoch, batch.position)


@pytest.fixture(autouse=True)
def _quiet():
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def fit(data, *, save_to=None, resume=None, save=None, **trainer):
    module = Recorder()
    callbacks = [Follow()]
    if save_to:
        save = save or {"every_n_train_steps": 1, "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(save_to, filename="{step}", save_top_k=-1, **save))
    Trainer(
        max_epochs=2,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(save_to),
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **trainer,
    ).fit(module, data, ckpt_path=resume)
    return module.seen


@pytest.mark.parametrize(
    ("trainer", "save", "n_checkpoints"),
    [
        ({}, None, 16),
        ({"val_check_interval": 3}, None, 16),
        ({"accumulate_grad_batches": 3}, None, 6),
        ({}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}, 2),
    ],
)
def test_resumed_from_any_checkpoint_the_batches_are_those_of_an_uninterrupted_run(
    tmp_path, trainer, save, n_checkpoints
):
    whole = fit(NumberData(), save_to=tmp_path, save=save, **trainer)
    assert [place[:2] for place in whole] == [(e, p) for e in (0, 1) for p in range(1, 9)]
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == n_checkpoints
    accumulated = trainer.get("accumulate_grad_batches", 1)
    for checkpoint in checkpoints:
        step = int(checkpoint.stem.split("=")[1])
        epochs, steps = divmod(step, -(-8 // accumulated))
        done = epochs * 8 + steps * accumulated
        assert fit(NumberData(), resume=checkpoint, **trainer) == whole[done:]


@pytest.mark.parametrize("step", [5, 8])
def test_workers_that_prefetch_change_nothing(tmp_path, step):
    whole = fit(NumberData(), save_to=tmp_path)
    checkpoint = tmp_path / f"step={step}.ckpt"
    assert fit(NumberData(num_workers=2), resume=checkpoint) == whole[step:]


def test_a_second_fit_of_the_same_data_starts_afresh(tmp_path):
    data = NumberData()
    whole = fit(data, save_to=tmp_path)
    assert fit(data) == whole
    assert fit(data, resume=tmp_path / "step=3.ckpt") == whole[3:]
    assert fit(data) == whole


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (NumberData(seed=4), "data seed 3, not 4"),
        (NumberData(n_rows=51), "trained with other training data"),
        (RenamedData(), "holds no place in RenamedData"),
    ],
)
def test_a_place_in_other_data_is_refused(tmp_path, other, message):
    fit(NumberData(), save_to=tmp_path)
    with pytest.raises(InputError, match=message):
        fit(other, resume=tmp_path / "step=3.ckpt")


def test_missing_split_is_named():
    with pytest.raises(InputError, match="NumberData has no 'test' split"):
        NumberData().test_dataloader()


@pytest.mark.parametrize(
    ("val", "test", "same"),
    [
        ("a.txt", "a.txt", True),
        (["a.txt", "b.txt"], ["a.txt", "b.txt"], True),
        ("a.txt", "b.txt", False),
        ("a.txt", None, False),
        (None, None, False),
        (0.1, 0.1, False),  # other rows each
    ],
)
def test_whether_the_test_is_the_validation_data(val, test, same):
    for kind in (
        CausalTextData, MaskedTextData, QuestionData, SequenceData, StreamedTextData, TokenData,
        TranslationData,
    ):  # fmt: skip
        more = {"source": "files"} if "source" in signature(kind).parameters else {}
        assert kind(train="t.txt", val=val, test=test, **more).tests_on_val is same, kind


@pytest.mark.parametrize("kind", [CaptionData, ImageData, QuestionData, SequenceData, TokenData])
@pytest.mark.parametrize("option", ["batch_size", "eval_batch_size"])
def test_a_batch_of_no_rows_is_refused_by_the_name_of_its_option(kind, option):
    train = {"train": "t.txt"} if kind in (QuestionData, TokenData) else {}
    with pytest.raises(InputError, match=f"^{option} must be at least 1, not 0"):
        kind(**train, **{option: 0})


def test_embedded_data_have_a_test_of_their_own():
    for data in (CaptionData(), CausalTextData(), ImageData(), SequenceData(), TranslationData()):
        data.setup()
        assert not data.tests_on_val


def test_negative_seed():
    with pytest.raises(InputError, match="-1"):
        NumberData(seed=-1)


def test_fewer_training_rows_than_processes_are_refused_by_all_of_them():
    for rank in range(4):
        data = NumberData(n_rows=3)
        data.trainer = SimpleNamespace(
            limit_train_batches=1.0, global_rank=rank, world_size=4, ckpt_path=None
        )
        with pytest.raises(InputError, match="train split has 3 rows, fewer than the 4 processes"):
            data.train_dataloader()


def test_batches_an_epoch_are_those_of_one_rank():
    data = NumberData()
    assert data.n_train_batches() == 8
    data.trainer = SimpleNamespace(
        limit_train_batches=1.0, global_rank=1, world_size=2, ckpt_path=None
    )
    assert data.n_train_batches() == 4
    assert len(list(data.train_dataloader().batch_sampler)) == 4
