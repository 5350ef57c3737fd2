"""`fourfold` as several processes: signals, failures, split weights, and restarts."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures.processes import Ended, free_port, together

Fit = Callable[..., list[Ended]]

# A rank is killed once, in the middle of a step.
DIES = """
import os, signal, sys
from pathlib import Path
from fourfold.cli import main
from fourfold.tasks import CausalLanguageModeling as Task

step, once = Task.training_step, Path("once")

def training_step(self, batch, batch_idx):
    if os.environ["RANK"] == "1" and self.trainer.global_step == 5 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch, batch_idx)

Task.training_step = training_step
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def fit(configs: dict[str, Path], here: Path) -> Fit:
    """`fourfold fit` in two processes, forked once all is imported."""
    import fourfold.commands.train.lightning_cli  # noqa: F401
    from fourfold.cli import main

    def call(run: str, *options: str, variables: Any = None, command: str = "fit") -> list[Ended]:
        def rank(number: int) -> int:
            if variables:
                for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
                    del os.environ[name]
                os.environ.update(variables(number))
            arguments = ["--config", str(configs["lm"]), "--run_dir", str(here / run)]
            return main([command, *arguments, "--trainer.devices=2", *options])

        return together(2, rank, here)

    return call


def slurm(rank: int) -> dict[str, str]:
    """The variables that srun gives to two tasks on one node."""
    return {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NAME": "fourfold",
    }


def content(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    return loaded


def same(one: Path, other: Path, rtol: float = 0.0, atol: float = 0.0) -> None:
    a, b = content(one), content(other)
    assert a["global_step"] == b["global_step"]
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(a[key], b[key], rtol=rtol, atol=atol)


def in_step(monkeypatch: pytest.MonkeyPatch, rank: int, step: int, change: Any) -> None:
    """Do something to the loss of one rank in one batch."""
    from fourfold.tasks import CausalLanguageModeling

    plain = CausalLanguageModeling.step

    def changed(self: Any, batch: Any) -> Any:
        total, count = plain(self, batch)
        here = self.trainer.training and self.trainer.global_rank == rank
        if here and self.trainer.fit_loop.total_batch_idx == step:
            total = change(total)
        return total, count

    monkeypatch.setattr(CausalLanguageModeling, "step", changed)


@pytest.mark.parametrize("variables", [slurm, pytest.param(None, marks=pytest.mark.slow)])
def test_a_signal_to_one_process_saves_and_stops_all(
    variables: Any, fit: Fit, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--trainer.strategy=ddp", "--trainer.limit_val_batches=0")
    assert [end.code for end in fit("whole", *options)] == [0, 0]

    def asked(total: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return total

    with monkeypatch.context() as patch:
        in_step(patch, 1, 2, asked)
        ended = fit("stopped", *options, variables=variables)
    # One process ends for all. Rank 1 gets the signal in the third step, both ranks stop after the
    # fourth, and rank 0, which prints the message, does not know which signal it was.
    assert [end.code for end in ended] == [75, 0], ended
    assert "stopped by a signal after step 4" in ended[0].out
    # Lightning's own handler would have written this, in the middle of a batch.
    assert not list(here.rglob("hpc_ckpt*"))
    assert [end.code for end in fit("stopped", *options, "--resume=must")] == [0, 0]
    same(here / "whole", here / "stopped")


@pytest.mark.parametrize(
    ("strategy", "accumulated"),
    [
        ("ddp", 1),
        pytest.param("ddp", 2, marks=pytest.mark.slow),
        pytest.param("fsdp2", 1, marks=pytest.mark.slow),
        pytest.param("fsdp2", 2, marks=pytest.mark.slow),
    ],
)
def test_a_loss_of_one_rank_that_is_not_finite_stops_all(
    strategy: str,
    accumulated: int,
    fit: Fit,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        in_step(patch, 1, 2, lambda total: total * float("nan"))
        ended = fit(
            "broken",
            f"--trainer.strategy={strategy}",
            "--trainer.limit_val_batches=0",
            f"--trainer.accumulate_grad_batches={accumulated}",
        )
    assert [end.code for end in ended] == [1, 1], ended
    for end in ended:
        assert "is not a finite number" in end.out
        assert re.search(r"batch \d+ of epoch \d+", end.out)  # also where weights are sharded
    assert re.search(
        r"optimizer step takes 2 devices x (2 micro-batches x )?\d+ rows", ended[0].out
    )


@pytest.mark.slow
def test_split_weights_leave_the_same_files_as_copies(fit: Fit, here: Path, run: Any) -> None:
    """In bf16, clipped, validated, averaged, stopped and resumed."""
    options = (
        "--trainer.precision=bf16-mixed",
        "--trainer.gradient_clip_val=0.1",
        "--average_last_checkpoints=2",
        "--average_every_n_steps=2",
        "--model.optimizer.bias_correction=false",
    )
    for strategy in ("ddp", "fsdp2"):
        for steps in (3, 8):
            ended = fit(
                strategy, *options, f"--trainer.strategy={strategy}", f"--trainer.max_steps={steps}"
            )
            assert [end.code for end in ended] == [0, 0], ended
    # The norm that clips is summed over pieces; without clipping they are equal bit by bit.
    rounding = {"rtol": 1e-5, "atol": 1e-9}
    same(here / "ddp", here / "fsdp2", **rounding)
    average = [
        torch.load(here / s / "checkpoints/average.ckpt", weights_only=True)["state_dict"]
        for s in ("ddp", "fsdp2")
    ]
    torch.testing.assert_close(*average, **rounding)
    # One process reads what two have written, and goes on; and two evaluate with split weights.
    lm = (here / "fsdp2/config.yaml", "--trainer.devices=1", "--trainer.strategy=auto")
    alone = run("test", "--config", *lm)
    assert alone.code == 0, alone.err
    found = (here / "fsdp2/metrics.json").read_text()
    ended = fit(
        "fsdp2", "--trainer.precision=bf16-mixed", "--trainer.strategy=fsdp2", command="test"
    )
    assert [end.code for end in ended] == [0, 0], ended
    mean = [line for line in found.splitlines() if "test/" in line]
    again = (here / "fsdp2/metrics.json").read_text()
    assert mean == [line for line in again.splitlines() if "test/" in line]


def torchrun(here: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    env = {key: value for key, value in env.items() if not key.startswith("PYTEST")}
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.Popen(
        command, cwd=here, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ends(*processes: subprocess.Popen[str], timeout: float = 240) -> list[tuple[int, str]]:
    try:
        out = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, out, strict=True)]


@pytest.mark.slow
def test_two_nodes_that_meet(fit: Fit, configs: dict[str, Path], here: Path) -> None:
    options = ("--trainer.strategy=ddp", "--trainer.max_steps=4")
    assert [end.code for end in fit("whole", *options)] == [0, 0]
    port = free_port()
    node = (
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-id=7",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "-m",
        "fourfold",
        "fit",
        "--config",
        str(configs["lm"]),
        "--run_dir=nodes",
        "--trainer.num_nodes=2",
        "--trainer.devices=1",
        *options,
    )
    for code, out in ends(torchrun(here, *node), torchrun(here, *node)):
        assert code == 0, out
    same(here / "whole", here / "nodes")


@pytest.mark.slow
def test_a_dead_rank_costs_time_and_nothing_else(
    fit: Fit, configs: dict[str, Path], here: Path
) -> None:
    options = ("--trainer.strategy=ddp", "--trainer.max_steps=12", "--checkpoint.every_n_steps=1")
    assert [end.code for end in fit("whole", *options)] == [0, 0]
    (here / "dies.py").write_text(DIES)
    process = torchrun(
        here,
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "dies.py",
        "fit",
        "--config",
        str(configs["lm"]),
        "--run_dir=killed",
        "--trainer.devices=2",
        *options,
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    ((code, out),) = ends(process)
    assert code == 0, out
    assert (here / "once").exists()
    assert "resumed after step 5" in out
    same(here / "whole", here / "killed")
