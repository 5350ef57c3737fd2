"""A family in a file of the user: create, fit, SIGKILL, resume, load, generate, look and export."""

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

import fourfold
from fourfold import families

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "own_family.py"
COMMAND = (sys.executable, "-c", "import sys; from fourfold.cli import main; sys.exit(main())")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`fourfold` in a process of its own, which finds the user's file."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.PIPE,
        text=True,
    )


def fit(folder: Path, name: str, *options: str) -> subprocess.Popen[str]:
    task, data = "--model=own_family.SharedLanguageModeling", "--data=CausalTextData"
    sizes = [f"--model.config.{x}" for x in ("d_model=16", "n_heads=2", "d_ff=32", "max_len=32")]
    return start(
        folder,
        *("fit", task, "--model.config.vocab_size=null", *sizes, data, "--data.source=builtin"),
        *("--data.block_size=32", "--data.batch_size=8", "--trainer.accelerator=cpu"),
        *(f"--run_dir={name}", "--trainer.max_steps=30", "--checkpoint.every_n_steps=5", *options),
    )


def weights(run: Path) -> dict[str, torch.Tensor]:
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    state: dict[str, torch.Tensor] = content["state_dict"]
    return state


def test_file_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 80


def test_create_and_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_REGISTERED", [])  # the file registers its family
    own_family = import_module("tests.fixtures.own_family")
    assert fourfold.list_models("shared*") == ["shared-tiny"]
    model = fourfold.create("shared-tiny", vocab_size=11)
    assert type(model) is own_family.SharedLM
    blocks = model.stack.blocks
    assert len(blocks) == 4
    assert all(block is blocks[0] for block in blocks)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_know_the_family(tmp_path: Path) -> None:
    (tmp_path / "own_family.py").write_text(FILE.read_text())
    whole = fit(tmp_path, "whole")
    output, _ = whole.communicate(timeout=250)
    assert whole.returncode == 0, output
    killed = fit(tmp_path, "killed")
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed/checkpoints/last.ckpt").exists():
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    resumed = fit(tmp_path, "killed")
    output, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, output
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert expected.keys() == found.keys()
    assert all(torch.equal(x, found[name]) for name, x in expected.items())

    allow = "--allow_class=own_family.SharedLM"
    generate = start(tmp_path, "generate", "--checkpoint=whole", allow, "--max-new-tokens=4")
    output, _ = generate.communicate("The value\n", timeout=120)
    assert generate.returncode == 0, output
    look = start(tmp_path, "look", "whole", allow, "--out=page.html", "--text=The value")
    output, _ = look.communicate(timeout=120)
    assert look.returncode == 0, output
    export = start(tmp_path, "export", "whole", "exported", allow)
    output, _ = export.communicate(timeout=120)
    assert export.returncode == 2
    assert "transformers has no class for this model" in output
