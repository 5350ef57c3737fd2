"""`fourfold learn`: files of exercises, their state, and the check of one."""

import shutil
import tomllib
from pathlib import Path

import pytest

from fourfold.cli import main
from fourfold.commands.course import exercises as learn
from fourfold.learn.exercises import EXERCISES

SOLUTION = (
    "def split_heads(x, n_heads):\n    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)\n"
)
RESHAPE = "def split_heads(x, n):\n    return x.reshape(len(x), n, x.shape[1], -1)\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File of the exercise heads in a new folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(["learn"]) == 0
    return tmp_path / "exercises" / "heads.py"


def test_files_are_written_and_listed_with_their_state(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["learn"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: not solved" for name in EXERCISES]
    assert sorted(path.stem for path in file.parent.iterdir()) == sorted(EXERCISES)
    assert "def split_heads(x, n_heads):\n" in file.read_text()


def test_files_are_never_replaced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SOLUTION)
    (file.parent / "scores.py").unlink()
    capsys.readouterr()
    assert main(["learn"]) == 0
    assert file.read_text() == SOLUTION
    assert (file.parent / "scores.py").exists()
    assert capsys.readouterr().out.splitlines()[1:3] == ["scores: not solved", "heads: right"]


def test_exit_code_is_0_for_a_solved_exercise_only(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for text, code, message in [
        (file.read_text(), 1, "heads: not solved"),
        (RESHAPE, 1, "heads: a reshape without a transposition mixes tokens and heads"),
        (SOLUTION, 0, "heads: right"),
    ]:
        file.write_text(text)
        assert main(["learn", "heads"]) == code
        assert capsys.readouterr().out == f"{message}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def split_heads(x, n_heads)\n", "SyntaxError: expected ':'"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def heads(x, n_heads): ...\n", "KeyError: 'split_heads'"),
    ],
)
def test_files_with_errors_are_reported_in_one_line(
    file: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    capsys.readouterr()
    assert main(["learn", "heads"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"heads: {Path('exercises', 'heads.py')} raises {message}")
    assert printed.count("\n") == 1


def test_a_wheel_brings_the_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hatch = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    places = hatch["targets"]["wheel"]["force-include"]
    assert places["docs/course"] == "fourfold/course/docs/course"  # `notebooks` looks there first
    shutil.copytree(root / "docs" / "course" / "exercises", tmp_path / "course" / "exercises")
    (tmp_path / "course" / "exercises" / "heads.py").write_text(SOLUTION)
    monkeypatch.setattr(learn, "COURSE", tmp_path / "course")
    assert main(["learn", "heads", "--dir", str(tmp_path / "mine")]) == 0


def test_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert main(["learn", "heads", "--dir", str(folder)]) == 1
    assert (folder / "heads.py").exists()
    assert main(["learn", "--dir", str(folder / "heads.py")]) == 2
    assert "--dir must be a folder, got a file" in capsys.readouterr().err


def test_unknown_exercises_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "head"]) == 2
    assert "NAME: invalid choice: 'head'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(60)
def test_a_watched_file_is_checked_after_each_change(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file changes while the command waits, and disappears in between, as with some editors."""
    texts = [RESHAPE, None, SOLUTION]

    def sleep(seconds: float) -> None:
        assert seconds < 1
        if texts[0] is None:
            file.unlink()
        else:
            file.write_text(texts[0])
        texts.pop(0)

    monkeypatch.setattr(learn.time, "sleep", sleep)
    capsys.readouterr()
    assert main(["learn", "heads", "--watch"]) == 0
    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first == "heads: not solved"
    assert "reshape" in second
    assert "FileNotFoundError" in third
    assert last == "heads: right"
    assert not texts
