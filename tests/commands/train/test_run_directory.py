import errno
from pathlib import Path

import pytest
import torch

from fourfold.commands import run_directory
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.errors import InputError


def run_with(folder: Path, *names: str) -> RunDirectory:
    run = RunDirectory(folder / "run")
    for name in names:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        torch.save({"name": name}, run.checkpoints / f"{name}.ckpt")
    return run


def test_its_name_is_that_of_the_config() -> None:
    model = {"class_path": "fourfold.tasks.Translation"}
    files = ["configs/gpt2/small.yaml", "configs/trainer/gpu.yaml"]
    config = {"config": files, "model": model, "trainer": {"default_root_dir": None}}
    assert RunDirectory.of(config).path == Path("runs/gpt2/small")
    assert RunDirectory.of(config | {"run_dir": "x"}).path == Path("x")
    asked = config | {"trainer": {"default_root_dir": "y"}}  # Lightning's own word for it
    assert RunDirectory.of(asked).path == Path("y")
    assert RunDirectory.of(asked | {"run_dir": "x"}).path == Path("x")
    assert RunDirectory.of(config | {"config": None}).path == Path("runs/Translation")


def test_resume(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last")
    assert new.resume_from("auto", None) is None
    assert new.resume_from("never", None) is None
    with pytest.raises(InputError, match="nothing to resume"):
        new.resume_from("must", None)
    assert old.resume_from("auto", None) == old.resume_from("must", None) == old.last
    with pytest.raises(InputError, match="already holds a training"):
        old.resume_from("never", None)


def test_a_checkpoint_to_start_from_wants_a_new_directory(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.resume_from("auto", str(old.last)) == old.last
    assert old.resume_from("auto", "last") == old.last
    with pytest.raises(InputError, match="leave out --ckpt_path"):
        old.resume_from("auto", "best")


def test_a_directory_to_start_from_means_where_it_stopped(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.resume_from("auto", str(old.path)) == old.last
    assert new.find(str(old.path)) == old.checkpoints / "best.ckpt"
    with pytest.raises(InputError, match=f"{tmp_path}: there is no checkpoint to go on from"):
        new.resume_from("auto", str(tmp_path))


def test_an_evaluation_takes_best_then_average_then_last(tmp_path: Path) -> None:
    names = ["best", "average", "last"]
    for skipped in range(3):
        run = run_with(tmp_path / str(skipped), *names[skipped:])
        assert run.find(None).stem == names[skipped]
    with pytest.raises(InputError, match=r"best\.ckpt: there is no such checkpoint, only last"):
        run_with(tmp_path / "2", "last").find("best")
    with pytest.raises(InputError, match="there is no checkpoint"):
        run_with(tmp_path / "none").find(None)
    with pytest.raises(InputError, match="give a path or one of best, average, last"):
        run_with(tmp_path / "2").find("bets")


def test_a_place_is_a_file_or_a_run(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last")
    assert RunDirectory.checkpoint_in(str(run.path)) == run.last
    assert RunDirectory.checkpoint_in(str(run.last)) == run.last


def test_another_model_is_refused(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last")
    run.refuse_another_model({"a": 1})  # no config.yaml to compare with
    run.config.write_text("model: {class_path: A, init_args: {lr: 0.1, config: {d: 2}}}")
    run.refuse_another_model({"class_path": "A", "init_args": {"lr": 0.1, "config": {"d": 2}}})
    with pytest.raises(InputError, match=r"trained with model.init_args.lr 0.1, .* given 0.2"):
        run.refuse_another_model({"class_path": "A", "init_args": {"lr": 0.2, "config": {"d": 2}}})
    # An option that there was not yet when the run began.
    more = {"lr": 0.1, "config": {"d": 2, "drop_path": 0.0}}
    run.refuse_another_model({"class_path": "A", "init_args": more})
    with pytest.raises(InputError, match=r"with model.init_args.config.d 2, and is now given None"):
        run.refuse_another_model({"class_path": "A", "init_args": {"lr": {"up": 1}}})


def test_a_broken_last_checkpoint_falls_back_on_the_newest_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, "last", "previous", "step=00000004", "step=00000010", "best")
    for broken, chosen in (
        ("last", "previous"),
        ("previous", "step=00000010"),
        ("step=00000010", "step=00000004"),
    ):
        file = run.checkpoints / f"{broken}.ckpt"
        file.write_bytes(file.read_bytes()[:-30])
        assert run.resume_from("must", None) == run.checkpoints / f"{chosen}.ckpt"
        assert f"going on from {chosen}.ckpt" in capsys.readouterr().err
        assert not file.exists()  # or it would become the previous one of the next
        assert (run.checkpoints / f"{broken}.ckpt.broken").exists()
    assert run.resume_from("auto", None) == run.checkpoints / "step=00000004.ckpt"
    (run.checkpoints / "step=00000004.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"step=00000004\.ckpt: the checkpoint is broken"):
        run.resume_from("auto", None)


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last", "previous")
    torch.save({"w": torch.ones(1000)}, run.last)
    content = bytearray(run.last.read_bytes())
    content[content.index(b"\x00\x00\x80?" * 50) + 100] ^= 1
    run.last.write_bytes(bytes(content))
    assert run.resume_from("auto", None) == run.checkpoints / "previous.ckpt"


def test_what_is_another_trainings_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RunDirectory(tmp_path / "r"), RunDirectory(tmp_path / "r")  # at once

    def taken(*arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "taken")

    with first.claimed():
        monkeypatch.setattr(run_directory.fcntl, "lockf", taken)
        with pytest.raises(InputError, match="another training"), second.claimed():
            pass
        second.remove_if_new()
        assert (tmp_path / "r/.lock").is_file()
    first.remove_if_new()
    assert not (tmp_path / "r").exists()
