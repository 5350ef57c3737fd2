"""On what was measured: processor, threads, versions and commit, and no path of the machine."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "timm", "x-transformers")


def machine(device: torch.device) -> dict[str, Any]:
    """What a reader needs to place the numbers."""
    found: dict[str, Any] = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "python": platform.python_version(),
    }
    return found | {name: installed(name) for name in PACKAGES} | {"commit": commit()}


def hardware() -> str:
    """The processor, and the GPU where there is one."""
    gpus = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([processor(), *gpus])


def processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed(package: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit of a checkout, with a + where files have been changed since, but for results.

    Asked once: what a command then writes into the checkout is no change of what it ran.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True
            )
        except OSError:  # there is no git
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A package installed inside somebody else's checkout is not a part of that.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    name = git("rev-parse", "--short", "HEAD")
    what_runs = (":(top)", ":(top,exclude)results")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *what_runs)
    return name and name + "+" * bool(changed)
