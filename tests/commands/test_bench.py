import json
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.bench import clock
from fourfold.commands.overview import BENCH


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "tiy"], "--size is 'tiy', but must be one of laptop, wide, gpu, tiny; did you"),
        (["--family", "bert"], "--family is 'bert', but must be one of causal_lm, masked_lm, vit"),
        (["--work", "train", "fit"], "--work is 'fit', but must be one of train, evaluate"),
        (["--growth", "depth"], "--growth is 'depth', but must be one of length, vocabulary"),
        (["--peers", "tim"], "--peers is 'tim', but must be one of transformers, timm"),
        (["--precision", "fp16"], "--precision is 'fp16', but must be one of bf16, fp32"),
        (["--rounds", "0"], "--rounds is 0, but must be at least 1"),
        (["--dropout", "1"], "--dropout is 1.0, but must lie in [0, 1)"),
        (["--size", "wide", "--family", "vit"], "size wide has no vit: it has causal_lm, masked"),
        (["--family", "vit", "--work", "beam"], "there is nothing to measure: beam is for"),
        (["--nanogpt", "none.py"], "--nanogpt is none.py, but there is no such file"),
        (["--sise", "tiny"], "unrecognized arguments: --sise tiny; did you mean --size?"),
    ],
)
def test_a_bad_word_is_one_sentence(arguments: list[str], said: str, run) -> None:
    result = run("bench", *arguments)
    assert result.code == 2
    assert result.err.startswith(f"fourfold: error: {said}")
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_it_prints_and_writes(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clock.SIDE, "cpu", 32)
    out = tmp_path / "deep" / "bench"
    result = run(
        *("bench", "--size", "tiny", "--work", "train", "evaluate", "--family", "causal_lm", "vit"),
        *("--peers", "none", "--rounds", 1, "--device", "cpu", "--out", out),
    )
    assert result.code == 0
    page = (out / "bench.md").read_text()
    assert page in result.out
    assert page.startswith("# fourfold bench, size tiny")
    rows = json.loads((out / "bench.json").read_text())["rows"]
    assert [(row["work"], row["family"]) for row in rows] == [
        ("train", "causal_lm"), ("train", "vit"), ("evaluate", "causal_lm"), ("evaluate", "vit"),
    ]  # fmt: skip
    assert (out / "bench.png").stat().st_size > 1000


def test_a_run_that_is_ended_writes_what_it_has_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fourfold", "bench", "--size", "tiny", "--family", "causal_lm",
               "--work", "memory", "train", "--peers", "none", "--rounds", "1000000000",
               "--device", "cpu", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("memory: causal_lm, fourfold, ")
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["work"] for row in rows] == ["memory"]
    assert (tmp_path / "bench.md").read_text() in said


def test_help(run) -> None:
    assert run("bench", "--help").out == BENCH + "\n"
