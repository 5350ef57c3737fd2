"""The GPU suite tried out on a CPU with tiny shapes, and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu_report import page, read


def suite(root: Path, out: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SIZE": "tiny", "DEVICE": "cpu", "ROUNDS": "1",
                   "PYTHON": sys.executable, **more}  # fmt: skip
    command = ["sh", str(root / "scripts/gpu_suite.sh"), str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=out.parent)


def test_the_page_says_how_each_part_ended(tmp_path: Path) -> None:
    (tmp_path / "parts.csv").write_text("part,code,seconds\ntests,1,9\ntrain,0,60\nbeam,124,60\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train/bench.json").write_text('{"rows": []}')
    (tmp_path / "train/bench.md").write_text("# fourfold bench, size gpu\n")
    found = read(tmp_path)
    assert found["bench"] == {"train": {"rows": []}}
    text = page(found, tmp_path)
    for line in (
        "| tests | exit code 1 | 9 |",
        "| train | well | 60 |",
        "| beam | out of time | 60 |",
    ):
        assert line in text
    assert text.endswith("## fourfold bench, size gpu\n")


def test_the_tests_of_a_gpu_need_nothing_but_torch(root: Path) -> None:
    """What a bare machine lacks would keep pytest from running any of them."""
    lacks = ["jsonargparse", "babel", "num2words", "wandb", "sacrebleu", "datasets", "torchvision"]
    files = [
        str(f) for f in (root / "tests").rglob("test_*.py") if "mark." + "cuda" in f.read_text()
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({lacks})); import pytest; "
    code += "sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "cuda"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, *files], capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("::") >= 3


@pytest.mark.slow
def test_all_of_it_without_a_gpu(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out", PARTS="tests train greedy beam")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/suite.json").read_text())
    codes = {part["part"]: part["code"] for part in found["parts"]}
    assert codes == {"tests": 0, "train": 0, "greedy": 0, "beam": 0}
    ways = {row["way"] for row in found["bench"]["train"]["rows"]}
    assert {"fourfold", "transformers"} <= ways
    assert "| train | well |" in (tmp_path / "out/README.md").read_text()


def test_a_part_that_fails_is_named_and_the_rest_goes_on(root: Path, tmp_path: Path) -> None:
    done = suite(root, tmp_path / "out", PARTS="greedy", SIZE="huge")
    assert done.returncode == 0
    assert "greedy: exit code 2" in done.stdout
    assert "| greedy | exit code 2 |" in (tmp_path / "out/README.md").read_text()
    assert "huge" in (tmp_path / "out/greedy.log").read_text()
