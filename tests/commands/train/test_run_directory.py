import errno
from pathlib import Path

import pytest
import torch

from fourfold.commands.train import run_directory
from fourfold.commands.train.run_directory import RunDirectory
from fourfold.errors import InputError


def run_with(folder: Path, *names: str) -> RunDirectory:
    run = RunDirectory(folder / "run")
    for name in names:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        torch.save({"name": name}, run.checkpoints / f"{name}.ckpt")
    return run


def test_directory_is_named_after_the_config() -> None:
    model = {"class_path": "fourfold.tasks.Translation"}
    files = ["configs/gpt2/small.yaml", "configs/trainer/gpu.yaml"]
    config = {"config": files, "model": model, "trainer": {"default_root_dir": None}}
    assert RunDirectory.from_config(config).path == Path("runs/gpt2/small")
    assert RunDirectory.from_config(config | {"run_dir": "x"}).path == Path("x")
    with_root = config | {"trainer": {"default_root_dir": "y"}}  # Lightning's name
    assert RunDirectory.from_config(with_root).path == Path("y")
    assert RunDirectory.from_config(with_root | {"run_dir": "x"}).path == Path("x")
    assert RunDirectory.from_config(config | {"config": None}).path == Path("runs/Translation")


def test_resume_option(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last")
    assert new.checkpoint_to_resume("auto", None) is None
    assert new.checkpoint_to_resume("never", None) is None
    with pytest.raises(InputError, match=r"--resume is must, but .*last\.ckpt does not exist"):
        new.checkpoint_to_resume("must", None)
    assert (
        old.checkpoint_to_resume("auto", None) == old.checkpoint_to_resume("must", None) == old.last
    )
    with pytest.raises(InputError, match="--run_dir must be a new directory with --resume never"):
        old.checkpoint_to_resume("never", None)


def test_named_checkpoint_needs_a_new_directory(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.checkpoint_to_resume("auto", str(old.last)) == old.last
    assert old.checkpoint_to_resume("auto", "last") == old.last
    with pytest.raises(InputError, match="without --ckpt_path"):
        old.checkpoint_to_resume("auto", "best")


def test_named_run_directory_means_its_newest_checkpoint(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.checkpoint_to_resume("auto", str(old.path)) == old.last
    assert new.find_checkpoint(str(old.path)) == old.checkpoints / "best.ckpt"
    with pytest.raises(
        InputError, match=f"{tmp_path}/checkpoints: there is no checkpoint to resume from"
    ):
        new.checkpoint_to_resume("auto", str(tmp_path))


def test_evaluation_prefers_best_then_average_then_last(tmp_path: Path) -> None:
    names = ["best", "average", "last"]
    for skipped in range(3):
        run = run_with(tmp_path / str(skipped), *names[skipped:])
        assert run.find_checkpoint(None).stem == names[skipped]
    with pytest.raises(InputError, match=r"--ckpt_path must be .*best\.ckpt does not exist"):
        run_with(tmp_path / "2", "last").find_checkpoint("best")
    with pytest.raises(InputError, match="checkpoint"):
        run_with(tmp_path / "none").find_checkpoint(None)
    with pytest.raises(
        InputError, match="must be best, average, last or an existing file, but bets does not exist"
    ):
        run_with(tmp_path / "2").find_checkpoint("bets")


def test_resume_skips_corrupted_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, "last", "previous", "step=00000004", "step=00000010", "best")
    for corrupted, chosen in (
        ("last", "previous"),
        ("previous", "step=00000010"),
        ("step=00000010", "step=00000004"),
    ):
        file = run.checkpoints / f"{corrupted}.ckpt"
        file.write_bytes(file.read_bytes()[:-30])
        assert run.checkpoint_to_resume("must", None) == run.checkpoints / f"{chosen}.ckpt"
        assert f"resuming from {chosen}.ckpt" in capsys.readouterr().err
        assert not file.exists()  # otherwise it would become previous.ckpt
        assert (run.checkpoints / f"{corrupted}.ckpt.corrupted").exists()
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "step=00000004.ckpt"
    (run.checkpoints / "step=00000004.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"not corrupted; .* \(corrupted: step=00000004\.ckpt\)"):
        run.checkpoint_to_resume("auto", None)


def test_one_flipped_bit_is_detected(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last", "previous")
    torch.save({"w": torch.ones(1000)}, run.last)
    content = bytearray(run.last.read_bytes())
    content[content.index(b"\x00\x00\x80?" * 50) + 100] ^= 1
    run.last.write_bytes(bytes(content))
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "previous.ckpt"


def test_cleanup_keeps_the_directory_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RunDirectory(tmp_path / "r"), RunDirectory(tmp_path / "r")

    def taken(*arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "taken")

    with first.lock():
        monkeypatch.setattr(run_directory.fcntl, "lockf", taken)
        with pytest.raises(InputError, match="another process trains"), second.lock():
            pass
        second.cleanup_if_empty()
        assert (tmp_path / "r/.lock").is_file()
    first.cleanup_if_empty()
    assert not (tmp_path / "r").exists()
