"""Tests of scripts/tools/slurm.sbatch with simulated srun and scontrol commands."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

SRUN = """#!/bin/bash
trap 'echo received; exit ${RECEIVED:-75}' USR1
echo "$@"
touch running
while [ -z "$CODE" ]; do sleep 0.05; done
exit $CODE
"""


@pytest.fixture
def job(root: Path, tmp_path: Path) -> object:
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/bash\necho "$@" > requeued\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def start(code: str, received: str = "75") -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        env = {
            "PATH": path,
            "SLURM_NNODES": "2",
            "SLURM_NTASKS_PER_NODE": "4",
            "SLURM_JOB_ID": "17",
            "CODE": code,
            "RECEIVED": received,
        }
        command = ["bash", str(root / "scripts/tools/slurm.sbatch"), "--config", "a.yaml"]
        return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, text=True)

    return start


# 137: a process was killed because the first one had ended.
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGUSR1, 137)]
)
def test_signal_is_forwarded_and_the_job_requeued(
    number: int, code: int, job: object, tmp_path: Path
) -> None:
    process = job("", str(code))  # type: ignore[operator]
    while not (tmp_path / "running").exists():
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert "received" in out
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"


@pytest.mark.parametrize("code", ["0", "1", "2", "137"])
def test_finished_job_is_not_requeued(code: str, job: object, tmp_path: Path) -> None:
    process = job(code)  # type: ignore[operator]
    out, _ = process.communicate(timeout=20)
    assert process.returncode == int(code)
    assert not (tmp_path / "requeued").exists()
    arguments = shlex.split(out)
    assert arguments[1:5] == ["fourfold", "fit", "--config", "a.yaml"]
    assert arguments[5:] == ["--trainer.num_nodes", "2", "--trainer.devices", "4"]
