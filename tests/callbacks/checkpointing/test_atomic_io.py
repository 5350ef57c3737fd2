from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.callbacks.checkpointing.atomic_io import AtomicCheckpointIO
from fourfold.checkpoints.files import read_file


def test_save_load_and_remove(tmp_path: Path) -> None:
    io = AtomicCheckpointIO(read_file)
    file = tmp_path / "deep" / "last.ckpt"
    io.save_checkpoint({"a": torch.ones(2)}, file)
    assert torch.equal(io.load_checkpoint(file)["a"], torch.ones(2))
    assert [f.name for f in file.parent.iterdir()] == ["last.ckpt"]
    io.remove_checkpoint(file)
    io.remove_checkpoint(file)
    assert not file.exists()


def test_failed_save_keeps_the_old_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = AtomicCheckpointIO(read_file)
    file = tmp_path / "last.ckpt"
    io.save_checkpoint({"step": 1}, file)

    def write_half(content: object, stream: Any) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(OSError, match="No space"):
        io.save_checkpoint({"step": 2}, file)
    assert read_file(file) == {"step": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["last.ckpt"]


def test_new_file_is_complete_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of the rename, both files are complete, and the new one is on the disk."""
    io = AtomicCheckpointIO(read_file)
    file = tmp_path / "last.ckpt"
    seen = []
    io.save_checkpoint({"step": 1}, file)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)

    def replace(part: Path, target: Path) -> None:
        seen.append((bool(synced), read_file(part), read_file(target)))

    monkeypatch.setattr("os.replace", replace)
    io.save_checkpoint({"step": 2}, file)
    assert seen == [(True, {"step": 2}, {"step": 1})]
