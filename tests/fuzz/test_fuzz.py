"""Fuzz tests: every damaged input works or is rejected in one line.

A failure prints the command and its files. FOURFOLD_FUZZ_SEED selects the inputs.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import bounds, checkpoints, configs, directories, images, texts
from tests.fuzz.conftest import World
from tests.fuzz.invariant import FOREIGN_ERROR, call, reset_peak, run, snapshot, status

# Strategy, number of inputs in the default suite and in the slow tests, by kind of input.
KINDS: dict[str, tuple[Callable[[World], st.SearchStrategy[Any]], int, int]] = {
    "text": (texts.cases, 15, 300),
    "images": (images.cases, 12, 200),
    "configs": (configs.cases, 18, 300),
    "checkpoints": (checkpoints.cases, 15, 200),
    "directories": (directories.cases, 25, 3000),
    "bounds": (bounds.cases, 20, 1000),
}
SEED = int(os.environ.get("FOURFOLD_FUZZ_SEED", "0"))
# Costs of an input in addition to the costs of valid inputs.
SECONDS, N_BYTES = 20.0, 1 << 30
BETWEEN = 50  # inputs between two checks that valid commands still work


def known_good(world: World) -> tuple[Any, ...]:
    """Return exit codes and output of valid commands."""
    runs, last = world.runs, world.runs["mt"] / "checkpoints/last.ckpt"
    return (
        call(("translate", "--checkpoint", str(last)), b"one two\n")[:2],
        call(("classify", "--checkpoint", str(runs["classes"])), b"one two\ttwo one\n")[:2],
        call(("fit", "--config", str(world.configs["lm"]), "--trainer.fast_dev_run=true"))[0],
    )


def fuzz(kind: str, n: int, world: World, folder: Path) -> Counter[str]:
    """Run `n` inputs of a kind and count the outcomes.

    All inputs run before the test fails, so that one fault does not hide another.
    """
    strategy, counts, faults = KINDS[kind][0](world), Counter[str](), list[str]()
    begin, memory = time.process_time(), reset_peak()
    good, state = known_good(world), snapshot(world.folder)
    limits = time.process_time() - begin + SECONDS, status("VmHWM") - memory + N_BYTES
    costs = [0.0, 0]

    @hypothesis.seed(SEED)
    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def one(case: Any) -> None:
        if sum(counts.values()) == n:
            return
        if os.environ.get("FOURFOLD_FUZZ_SHOW"):
            print(f"\n{case!r:.1200}", flush=True)  # before it can end this process
        outcome = run(case, folder / "here")
        spent = outcome.seconds, outcome.n_bytes
        costs[:] = map(max, costs, spent)
        if any(used > limit for used, limit in zip(spent, limits, strict=True)):
            outcome.faults.append(f"needs {spent[0]:.1f} s and {spent[1] >> 20} MiB")
        kinds = {0: "works", 1: "stopped", FOREIGN_ERROR: "foreign"}
        counts[kinds.get(outcome.code, "rejected")] += 1
        if os.environ.get("FOURFOLD_FUZZ_SHOW"):
            print(f" -> {outcome.code} {outcome.error[:600]}")
            print(f" {outcome.seconds:.1f} s, {outcome.n_bytes >> 20} MiB {outcome.faults}")
        if outcome.faults:
            faults.append(f"{case!r}\n -> {outcome.code} " + "\n -> ".join(outcome.faults))
        if sum(counts.values()) % BETWEEN == 0:
            assert known_good(world) == good, (
                f"the result of valid commands has changed after\n{case!r}"
            )

    one()
    assert known_good(world) == good
    assert snapshot(world.folder) == state, "an input was written to"
    said = (f"{counts[how]:>4} {how}" for how in ("works", "rejected", "stopped", "foreign"))
    print(f"\n{kind:<12} seed {SEED}: {', '.join(said)}, {len(faults):>3} with a fault")
    print(f"{'':<12} at most {costs[0]:.1f} s (limit {limits[0]:.1f}), {costs[1] >> 20:.0f} MiB")
    found = f"{len(faults)} faults\n\n" + "\n\n".join(faults)
    # File names may hold bytes that are not UTF-8, which a process of xdist cannot send.
    assert not faults, found.encode(errors="backslashreplace").decode()
    return counts


@pytest.mark.timeout(300, method="thread")  # the harness uses SIGALRM
@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_work_or_are_rejected(kind: str, world: World, tmp_path: Path) -> None:
    n = KINDS[kind][1]
    assert sum(fuzz(kind, n, world, tmp_path).values()) == n


@pytest.mark.slow
@pytest.mark.timeout(3600, method="thread")
@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("kind", KINDS)
def test_many_inputs_work_or_are_rejected(kind: str, world: World, tmp_path: Path) -> None:
    n = KINDS[kind][2]
    counts = fuzz(kind, n, world, tmp_path)
    assert sum(counts.values()) == n
    assert min(counts["works"], counts["rejected"]) > n / 10, "the inputs are too similar"
