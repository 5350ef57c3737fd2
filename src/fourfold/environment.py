"""Machine and software: processor, GPU, package versions, commit.

No path and no host name of the machine is recorded.
"""

import platform
import re
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

# Packages whose versions are recorded in the provenance of a table and in metrics.json.
REPORTED_PACKAGES = ("lightning", "tokenizers", "sacrebleu", "numpy")
COMPARED_PACKAGES = ("torch", "transformers", "timm", "x-transformers")


def machine(device: torch.device) -> dict[str, Any]:
    """Return a description of the machine and the software, on which measured times depend.

    The entries are "processor", "threads" (CPU threads of torch), "gpu" (None if the device is a
    CPU), "python", the version of each installed package in `COMPARED_PACKAGES` by its name, and
    "commit" (None if not known).
    """
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "python": platform.python_version(),
        **versions(*COMPARED_PACKAGES),
        "commit": commit(),
    }


def provenance(about: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the origin of a result, such as a reproduced table of a paper.

    The entries of `about`, such as command and seconds, are followed by "finished" (the present
    date and time), "machine" and "versions" (of `REPORTED_PACKAGES`).
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = {name: value for name, value in machine(device).items() if value is not None}
    return {**about, "finished": now(), "machine": known, "versions": versions(*REPORTED_PACKAGES)}


def now() -> str:
    """Return the current date and time in UTC, in ISO format, without fractions of a second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions(*packages: str) -> dict[str, str]:
    """Return a dict from the name of each installed package in `packages` to its version."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def hardware() -> str:
    """Return the names of the processor and of the GPU (if there is one), joined by a comma."""
    gpus = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([processor(), *gpus])


def processor() -> str:
    """Return the name of the CPU, or the name of its architecture if the name is not known."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


@cache
def commit() -> str | None:
    """Return the short hash of the commit of this package's git checkout, as of the first call.

    "+" at its end means that tracked files outside `results` are modified. The result is None if
    git is not installed, or if the package is not tracked in a git checkout.
    """
    file = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.check_output(command, encoding="utf-8", stderr=subprocess.DEVNULL)

    try:
        git("ls-files", "--error-unmatch", file.name)
        changes = git("status", "--porcelain", "-uno", "--", ":(top)", ":(top,exclude)results")
        return git("rev-parse", "--short", "HEAD").strip() + "+" * bool(changes)
    except (OSError, subprocess.CalledProcessError):
        return None
