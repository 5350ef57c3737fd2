"""Tests of the GPU suite on a CPU with tiny models, and of its report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks.gpu_report import page, read


def suite(root: Path, out: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "SIZE": "tiny",
        "DEVICE": "cpu",
        "ROUNDS": "1",
        "PYTHON": sys.executable,
        **more,
    }
    command = ["sh", str(root / "scripts/benchmarks/gpu_suite.sh"), str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out.parent)


def test_page_shows_the_result_of_each_part(tmp_path: Path) -> None:
    (tmp_path / "parts.csv").write_text("part,code,seconds\ntests,1,9\ntrain,0,60\nbeam,124,60\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train/bench.json").write_text('{"measurements": []}')
    (tmp_path / "train/bench.md").write_text("# Benchmark, size gpu\n")
    found = read(tmp_path)
    assert found["bench"] == {"train": {"measurements": []}}
    text = page(found, tmp_path)
    for line in (
        "| tests | exit code 1 | 9 |",
        "| train | passed | 60 |",
        "| beam | timeout | 60 |",
    ):
        assert line in text
    assert text.endswith("## Benchmark, size gpu\n")


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


@pytest.mark.slow
def test_suite_runs_on_a_cpu(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out", PARTS="tests train greedy beam")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/suite.json").read_text())
    codes = {part["part"]: part["code"] for part in found["parts"]}
    assert codes == {"tests": 0, "train": 0, "greedy": 0, "beam": 0}
    contenders = {m["contender"] for m in found["bench"]["train"]["measurements"]}
    assert {"fourfold", "transformers"} <= contenders
    assert "| train | passed |" in (tmp_path / "out/README.md").read_text()


@pytest.mark.slow
def test_failed_part_is_reported_and_the_others_run(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out", PARTS="greedy", SIZE="huge")
    assert done.returncode == 0
    assert "greedy: exit code 2" in done.stdout
    assert "| greedy | exit code 2 |" in (tmp_path / "out/README.md").read_text()
    assert "huge" in (tmp_path / "out/greedy.log").read_text()
