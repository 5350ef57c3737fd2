"""Tests of the subprocesses that run one contender each."""

import pytest

from scripts.benchmarks.peers.registry import PeerUnavailable
from scripts.benchmarks.workers import Worker, run_once, worker_processes
from scripts.benchmarks.workloads import SIZES, Settings

SHAPE = SIZES["tiny"]["causal_lm"]
SETTINGS = Settings(size="tiny", families=("causal_lm",))


def test_failing_step_makes_a_peer_unavailable_but_is_raised_for_fourfold() -> None:
    def fail() -> None:
        raise RuntimeError("no kernel\nand more")

    with pytest.raises(PeerUnavailable, match=r"failed: RuntimeError: no kernel$"):
        run_once(fail, "timm")
    with pytest.raises(RuntimeError, match="no kernel"):
        run_once(fail, "fourfold")


@pytest.mark.slow
def test_worker_runs_steps_until_its_process_is_killed() -> None:
    with worker_processes() as workers:
        worker = Worker("train", "fourfold", "causal_lm", SHAPE, SETTINGS, compile=False)
        workers.append(worker)
        worker.wait()
        assert worker.n_parameters > SHAPE.n_out * SHAPE.d_model
        worker()
        worker()
        process = worker._process
        assert process.poll() is None
        process.kill()
        process.wait()
        with pytest.raises(PeerUnavailable, match="out of memory"):
            worker._read_reply()
    assert process.poll() is not None


@pytest.mark.slow
def test_worker_reports_an_unavailable_peer() -> None:
    with worker_processes() as workers:
        workers.append(Worker("train", "nanogpt", "causal_lm", SHAPE, SETTINGS, compile=False))
        with pytest.raises(PeerUnavailable, match="requires --nanogpt FILE"):
            workers[0].wait()
