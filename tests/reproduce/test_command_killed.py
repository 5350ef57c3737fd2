"""`fourfold reproduce` in processes that are killed at random moments, and started again."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# Two rows, of which one is learned from the weights of a training of its own.
PAPER = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  t:
    title: Killed
    source: [read]
    columns: {ppl: {title: perplexity}, task: {title: perplexity afterwards}}
    rows:
      learned: {laptop: {}, ppl: 5.0, task: 4.0}
      scratch: {laptop: {start: random}, task: 6.0}
    tiers:
      laptop:
        config: configs/vaswani2017/tiny.yaml
        columns: {ppl: test/ppl_token}
        about: tiny
        options: &options
          config: {d_model: 32, d_ff: 64, dropout: 0.1}
          model: {num_beams: 1, val_num_beams: 0}
          data: {rows: 400}
          trainer: {max_steps: 8, max_epochs: -1}
          run: {tensorboard: false, checkpoint.every_n_steps: 2}
        test: {run: {ckpt_path: last}}
        then:
          task:
            config: configs/vaswani2017/tiny.yaml
            columns: {task: test/ppl_token}
            options: *options
            test: {run: {ckpt_path: last}}
"""
REPRODUCE = """
import sys
from pathlib import Path
from fourfold.cli import main
from fourfold.reproduce import load_tables as reading
reading.papers = lambda: {"p": reading.read_paper("p.yaml", Path("p.yaml").read_text())}
sys.exit(main(["reproduce", "p/t", "--tier", "laptop", "--seeds", "2", *sys.argv[1:]]))
"""
TABLE = "p/t/laptop/table.json"
KILLS = 9


@pytest.fixture
def begin(root: Path, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts the command, its runs and results named so; what is left of it ends with the test."""
    (tmp_path / "configs").symlink_to(root / "configs")
    (tmp_path / "p.yaml").write_text(PAPER)
    children = []

    def call(name: str) -> subprocess.Popen[bytes]:
        where = ["--runs", f"{name}/runs", "--out", f"{name}/results"]
        with (tmp_path / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", REPRODUCE, *where],
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        children.append(child)
        return child

    yield call
    for child in children:
        kill_all(child.pid)


def kill_all(number: int) -> None:
    """The command and what it has started: a machine that goes down."""
    with suppress(ProcessLookupError):  # all are gone
        os.killpg(number, signal.SIGKILL)


def kill_it_alone(number: int) -> None:
    """Its training goes on, and is waited for."""
    os.kill(number, signal.SIGKILL)


def tell_it_to_end(number: int) -> None:
    """Its training is told so, saves and ends."""
    os.kill(number, signal.SIGTERM)


WAYS = (kill_all, kill_it_alone, tell_it_to_end)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_table_does_not_depend_on_when_it_was_killed(
    begin: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    began = time.monotonic()
    assert begin("whole").wait() == 0, (tmp_path / "whole.log").read_text()
    seconds = time.monotonic() - began
    moments, stopped = random.Random(0), []
    for number in range(KILLS):
        way, after = WAYS[number % len(WAYS)], moments.uniform(0.0, seconds / 3)
        child = begin("killed")
        with suppress(subprocess.TimeoutExpired):
            assert child.wait(after) == 0, (tmp_path / "killed.log").read_text()
            break
        way(child.pid)
        child.wait()
        stopped.append((way.__name__, round(after, 1)))
    print(f"{seconds:.0f} s whole; stopped after", stopped)
    assert begin("killed").wait() == 0, (tmp_path / "killed.log").read_text()
    assert len(stopped) > 2
    whole, killed = (tmp_path / name / "results" / TABLE for name in ("whole", "killed"))
    assert killed.read_text() == whole.read_text()
