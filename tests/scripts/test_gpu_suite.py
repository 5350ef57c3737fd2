"""Tests of the GPU suite on a CPU with tiny models: its queue, and its parts."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.tools.gpu_queue import TABLE, Part, main, page, read_parts, record

PARTS = """name,limit,kind,issue,sources,command
first,9,together,1,sources/a.py,echo one && touch $OUT/made
second,9,alone,1,sources,"echo two; exit 3"
third,1,alone,2,sources/b.py,sleep 60
fourth,9,beside,2,sources/b.py,echo four
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository with a table of four parts; return its root."""
    (tmp_path / "sources").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"sources/{name}.py").write_text(f"{name} = 1\n")
    (tmp_path / "parts.csv").write_text(PARTS)
    monkeypatch.setattr("scripts.tools.gpu_queue.ROOT", tmp_path)
    monkeypatch.setattr("scripts.tools.gpu_queue.TABLE", tmp_path / "parts.csv")
    return tmp_path


def run_queue(root: Path, *more: str) -> dict[str, int]:
    """Run the queue, and return the exit code of each part that has run."""
    assert main(["--out", str(root / "out"), *more]) == 0
    records = {p.name: record(root / "out" / p.name) for p in read_parts(root / "parts.csv")}
    return {name: found["code"] for name, found in records.items() if found}


def test_parts_run_and_are_skipped_when_they_have_succeeded(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_queue(queue) == {"first": 0, "second": 3, "third": 124, "fourth": 0}
    assert (queue / "out/first/made").is_file()
    assert (queue / "out/second/log.txt").read_text() == "two\n"
    text = (queue / "out/gpu.md").read_text()
    for row in (
        "| first | 1 | passed |",
        "| second | 1 | exit code 3 |",
        "| third | 2 | timeout |",
    ):
        assert row in text
    capsys.readouterr()
    run_queue(queue)
    printed = capsys.readouterr().out
    assert [line.split(":")[0] for line in printed.splitlines()] == ["second", "third"]
    (queue / "sources/a.py").write_text("a = 2\n")
    assert "| first | 1 | passed, other sources |" in page(
        read_parts(queue / "parts.csv"), queue / "out"
    )
    run_queue(queue, "--parts", "first", "fourth")
    assert capsys.readouterr().out.splitlines()[0].startswith("first: passed")


def test_a_part_that_may_exceed_the_budget_is_postponed(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_queue(queue, "--budget", "5") == {"third": 124}
    assert "first: postponed" in capsys.readouterr().out


def test_key_depends_on_command_and_sources_alone(queue: Path) -> None:
    (part, *_) = read_parts(queue / "parts.csv")
    assert replace(part, limit=1, issue="7").key == part.key
    assert replace(part, command="false").key != part.key
    (queue / "sources/b.py").write_text("b = 2\n")
    assert part.key == read_parts(queue / "parts.csv")[0].key
    before = part.key
    (queue / "sources/a.py").write_text("a = 3\n")
    assert part.key != before


def test_table_has_short_parts_with_sources(root: Path) -> None:
    parts = read_parts(TABLE)
    assert len({part.name for part in parts}) == len(parts) > 10
    for part in parts:
        assert 0 < part.limit <= 180
        assert part.kind in ("together", "alone", "beside")
        for pattern in part.sources.split():
            assert list(root.glob(pattern)), (part.name, pattern)
        # `fourfold reproduce` exits with 0 at the end of its budget, but the part has not ended.
        assert (" reproduce " in part.command) == ("the budget is spent" in part.command)


def test_gpu_tests_require_no_package_but_torch(root: Path) -> None:
    """pytest must be able to collect them on a machine without the optional packages."""
    missing = [
        "jsonargparse",
        "babel",
        "num2words",
        "wandb",
        "sacrebleu",
        "datasets",
        "torchvision",
    ]
    files = [
        str(f) for f in (root / "tests").rglob("test_*.py") if "mark." + "cuda" in f.read_text()
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import pytest; "
    code += "sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "cuda"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, *files], capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("::") >= 3


def run_parts(root: Path, out: Path, parts: list[Part]) -> None:
    """Run parts of the table with tiny models on a CPU, without a time limit."""
    environment = {
        **os.environ,
        "SIZE": "tiny",
        "CPU_SIZE": "tiny",
        "DEVICE": "cpu",
        "ROUNDS": "1",
        "PYTHON": sys.executable,
        "WORKERS": "1",
        "MEMORY_RECIPES": "gpt1/base",
    }
    names = [part.name for part in parts]
    command = ["sh", str(root / "scripts/gpu_suite.sh"), "--out", str(out), "--budget", "9999"]
    subprocess.run([*command, "--parts", *names], check=True, env=environment, cwd=out.parent)


@pytest.mark.slow
def test_parts_run_on_a_cpu(root: Path, tmp_path: Path) -> None:
    if shutil.which("timeout") is None:
        pytest.skip("needs the command timeout")
    parts = [
        p for p in read_parts(TABLE) if p.name in ("tests", "train_encoder_decoder", "cpu_greedy")
    ]
    run_parts(root, tmp_path / "out", parts)
    for part in parts:
        log = (tmp_path / "out" / part.name / "log.txt").read_text()
        assert record(tmp_path / "out" / part.name)["code"] == 0, log[-3000:]
    found = json.loads((tmp_path / "out/train_encoder_decoder/bench.json").read_text())
    contenders = {m["contender"] for m in found["measurements"]}
    assert {"fourfold", "transformers"} <= contenders
