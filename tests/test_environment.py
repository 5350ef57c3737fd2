"""The commit that a number belongs to, and the memory of the machine."""

import subprocess
from pathlib import Path

import pytest

from fourfold import environment


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that holds a package, which is asked for its commit."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "machine.py").write_text("x = 1\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table.md").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    monkeypatch.setattr(environment, "__file__", str(package / "machine.py"))
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_of_a_checkout(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "--short", "HEAD")
    assert environment.commit.__wrapped__() == head
    (checkout / "results/table.md").write_text("2\n")
    assert environment.commit.__wrapped__() == head
    (checkout / "package/machine.py").write_text("x = 2\n")
    assert environment.commit.__wrapped__() == head + "+"


def test_of_a_package_in_the_checkout_of_another(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / ".venv/fourfold"
    installed.mkdir(parents=True)
    monkeypatch.setattr(environment, "__file__", str(installed / "machine.py"))
    assert environment.commit.__wrapped__() is None
