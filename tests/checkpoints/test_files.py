"""Checkpoint files: models and tasks from them, corrupted files, files of other programs."""

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from lightning import Trainer

import fourfold
from fourfold.checkpoints.files import DamagedFile, read_file, write_file
from fourfold.errors import InputError
from fourfold.tasks import load_task
from tests.fixtures.tiny_tasks import FAMILIES, JOINED

TASKS = {**FAMILIES, **JOINED}


def quiet(folder: Path) -> Trainer:
    return Trainer(
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


@pytest.fixture(scope="module", params=TASKS)
def saved(request, texts: Path, tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    task, data = TASKS[request.param](texts)
    trainer = quiet(folder)
    trainer.fit(task, data)
    trainer.save_checkpoint(folder / "a.ckpt")
    torch.save(task.model.state_dict(), folder / "weights.pt")
    return request.param, folder / "a.ckpt"


def test_checkpoint_alone_restores_model_and_artifacts(saved: tuple[str, Path]) -> None:
    name, path = saved
    task = load_task(path)
    weights = torch.load(path.with_name("weights.pt"))
    assert weights.keys() == task.model.state_dict().keys()
    for key, value in task.model.state_dict().items():
        assert torch.equal(value, weights[key]), key
    assert not task.training
    assert ("class_names" in task.artifacts) == (name == "images")
    if name != "images":
        assert task.tokenizer.decode(task.tokenizer.encode("one two")) == "one two"
    assert fourfold.load(path).config == task.model.config


def test_checkpoint_of_another_task_is_rejected(saved: tuple[str, Path], texts: Path) -> None:
    name, path = saved
    other = "images" if name != "images" else "causal"
    with pytest.raises(InputError, match="is needed"):
        load_task(path, expect=type(FAMILIES[other](texts)[0]).__name__)
    task, data = FAMILIES[other](texts)
    with pytest.raises(InputError, match=r"--model must be .*, which wrote the checkpoint, got "):
        quiet(path.parent).test(task, data, ckpt_path=path, verbose=False, weights_only=True)


def test_truncated_file_is_rejected(saved: tuple[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.ckpt"
    content = saved[1].read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        broken.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"broken\.ckpt"):
            load_task(broken)


def test_missing_foreign_and_malicious_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such checkpoint"):
        load_task(tmp_path / "nothing.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(InputError, match="not a checkpoint written by fourfold"):
        load_task(tmp_path / "foreign.ckpt")

    class Bomb:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "exploded",)

    torch.save({"fourfold": Bomb()}, tmp_path / "bomb.ckpt")
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.ckpt", "bomb.pkl"):
        with pytest.raises(InputError, match=name):
            load_task(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_too_small_a_vocabulary_is_rejected_before_the_first_step(
    texts: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    task, data = FAMILIES["translation"](texts)
    task.config = replace(task.config, vocab_size=7)
    with pytest.raises(
        InputError, match=r"model\.config\.vocab_size must be at least \d+, .*, got 7"
    ):
        quiet(tmp_path).fit(task, data)


def test_files_of_version_0_2_0_and_of_other_programs_are_read(tmp_path: Path) -> None:
    """Files of version 0.2.0 have digests, which are not read any more."""
    torch.save({"step": 1, "fourfold_digests": {"values": 7, "tensors": {}}}, tmp_path / "a.pt")
    torch.save({"step": 1}, tmp_path / "new.pt")
    torch.save({"step": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("a.pt", "new.pt", "old.pt"):
        for mmap in (False, True):
            assert read_file(tmp_path / name, mmap=mmap) == {"step": 1}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_checkpoint_that_was_loaded_can_be_saved_again(kind: type, tmp_path: Path) -> None:
    """Lightning's launcher saves a state dict, which is an OrderedDict."""
    file = tmp_path / "a.ckpt"
    write_file(kind(a=torch.ones(3), step=7), file)
    write_file(torch.load(file, weights_only=True), file)
    assert read_file(file).keys() == {"a", "step"}


def test_compressed_file_is_rejected_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.ckpt"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(20 << 20))

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("the file was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "testzip", fail)
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(DamagedFile, match="archive/data/0 is compressed"):
        read_file(file)


def test_overlapping_entries_are_rejected(tmp_path: Path) -> None:
    """Entries that share their bytes would unpack to more than the size of the file."""
    file = tmp_path / "shared.ckpt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data/0", bytes(5000))
        archive.filelist += archive.filelist * 3
    with pytest.raises(DamagedFile, match="entries overlap"):
        read_file(file)
