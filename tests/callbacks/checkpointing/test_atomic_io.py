from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.callbacks.checkpoint_io import AtomicCheckpointIO


def read(path: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def test_there_and_back(tmp_path: Path) -> None:
    io, file = AtomicCheckpointIO(read), tmp_path / "deep" / "last.ckpt"
    io.save_checkpoint({"a": torch.ones(2)}, file)
    assert torch.equal(io.load_checkpoint(file)["a"], torch.ones(2))
    assert [f.name for f in file.parent.iterdir()] == ["last.ckpt"]
    io.remove_checkpoint(file)
    io.remove_checkpoint(file)
    assert not file.exists()


def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io, file = AtomicCheckpointIO(read), tmp_path / "last.ckpt"
    io.save_checkpoint({"step": 1}, file)

    def half(content: object, stream: Any) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="No space"):
        io.save_checkpoint({"step": 2}, file)
    assert read(file) == {"step": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_kill_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there at the moment of the rename is complete and on the disk."""
    io, file, seen = AtomicCheckpointIO(read), tmp_path / "last.ckpt", []
    io.save_checkpoint({"step": 1}, file)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)

    def replace(part: Path, target: Path) -> None:
        seen.append((bool(synced), read(part), read(target)))

    monkeypatch.setattr("os.replace", replace)
    io.save_checkpoint({"step": 2}, file)
    assert seen == [(True, {"step": 2}, {"step": 1})]
