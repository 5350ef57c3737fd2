"""The quick demo trains all families, and the commands that it prints at the end work."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_printed_commands_use_the_trained_models(root: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(root / "scripts" / "demo"), "--quick"]
    output = subprocess.run(
        script, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    ).stdout  # pytest shows stderr
    assert f"look.html: {(tmp_path / 'runs/demo/look.html').stat().st_size / 1e6:.2f} MB" in output
    commands = output.split("Next, try:\n")[1].splitlines()
    assert len(commands) == 3
    for command in commands:
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
