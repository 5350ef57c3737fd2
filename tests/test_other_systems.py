"""Checks, on Linux, of what Windows and macOS lack. Nothing here has run on these systems."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close
from torch.utils.data import DataLoader

from tests.fixtures.tiny_tasks import TASKS

# Python on Windows lacks these modules and names. They are removed once torch and Lightning, which
# have their own versions for Windows, are imported.
LIKE_WINDOWS = """
import fcntl, os, signal, sys, warnings
import lightning, torch, torchmetrics, yaml, jsonargparse, filelock, tokenizers, sacrebleu
import multiprocessing.popen_fork, subprocess
locked = []
def locking(descriptor, mode, n):
    locked.append(mode)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
sys.modules["msvcrt"] = type(sys)("msvcrt")
sys.modules["msvcrt"].locking, sys.modules["msvcrt"].LK_NBLCK = locking, 2
for name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "syslog"):
    sys.modules[name] = None
kept = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
for name in [name for name in vars(signal) if name.startswith("SIG") and name not in kept]:
    delattr(signal, name)
gone = ("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "setsid", "killpg", "uname",
        "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "sched_getaffinity", "mkfifo",
        "getloadavg", "wait", "chown", "nice", "sysconf", "alarm")
for name in [name for name in vars(os) if name in gone or name.startswith(("EX_", "sched_"))]:
    delattr(os, name)
from lightning.pytorch.trainer.connectors import signal_connector
signal_connector._IS_WINDOWS = True
signal.valid_signals = lambda: {signal.SIGABRT, signal.SIGINT, signal.SIGTERM}
from fourfold.cli import main
from fourfold.commands.run_directory import RunDirectory
# Without an encoding, a file would be read in the code page of the machine.
warnings.filterwarnings("error", category=EncodingWarning, module="fourfold")
steps = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1", "--run_dir", "run"]
tiny = ["--config", CONFIG]
assert main(["fit", *tiny, *steps]) == 0
assert locked == [2] * len(locked) and locked
assert not RunDirectory("run").is_locked()
assert main(["fit", *tiny, "--trainer.max_steps", "3", *steps[2:]]) == 0
assert main(["test", "--run_dir", "run", "--trainer.limit_test_batches", "1"]) == 0
"""


@pytest.mark.parametrize("recipe", ["gpt2/tiny", "vit/tiny"])
def test_fit_resume_and_test_without_what_windows_lacks(recipe: str, tmp_path: Path) -> None:
    script = LIKE_WINDOWS.replace("CONFIG", repr(recipe))
    command = [sys.executable, "-X", "warn_default_encoding", "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", TASKS)
def test_workers_can_be_spawned(name: str, texts: Path) -> None:
    # Windows and macOS start worker processes with pickled arguments instead of a copy of memory.
    _, data = TASKS[name](texts)
    data.prepare_data()
    data.setup("fit")
    loader = data.val_dataloader()
    parts: Any = (loader.dataset, loader.collate_fn, loader.worker_init_fn)
    dataset, collate, _ = pickle.loads(pickle.dumps(parts))
    again = DataLoader(dataset, batch_sampler=loader.batch_sampler, collate_fn=collate)
    for ours, theirs in zip(loader, again, strict=True):
        assert_close(tuple(x for x in ours), tuple(x for x in theirs), rtol=0, atol=0)
