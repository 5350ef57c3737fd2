"""Machine and software: processor, GPU, available memory, package versions, commit.

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

    Args:
        device: Device of the computation.

    Returns:
        Dict with the entries "processor" (name), "threads" (number of CPU threads of torch), "gpu"
        (name; None if the device is a CPU), "python" (version), the version of each installed
        package in `COMPARED_PACKAGES` by its name, and "commit" (None if not known).
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

    Args:
        about: Entries about the result itself, such as command, data and seconds.

    Returns:
        A dict with the entries of `about` and three further entries. "finished" is the present date
        and time. "machine" is the dict that `machine` returns, without the entries that are None.
        "versions" is a dict of the versions of `REPORTED_PACKAGES`.
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
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of RAM that this process can allocate; None if they are not known.

    The limits of the control groups (cgroups, version 1 and 2) of the process are respected. Pages
    of files that the kernel can drop count as available.

    Args:
        root: Directory that contains proc and sys.
    """
    meminfo = root / "proc/meminfo"
    text = meminfo.read_text() if meminfo.exists() else ""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    limits = [int(found[1]) * 1024] if found else []
    file = root / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.exists() else ():
        _, controllers, group = line.split(":", 2)
        base = root / "sys/fs/cgroup"
        names = ("memory.max", "memory.current", "inactive_file")
        if controllers:
            if "memory" not in controllers.split(","):
                continue
            base /= "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        # A container may show its own group as the root. A group also obeys the limits above it.
        here = base / group.lstrip("/")
        for folder in [base, here, *here.parents]:
            if folder.is_relative_to(base):
                limits += _cgroup_limit(folder, *names)
    return min(limits, default=None)


def _cgroup_limit(folder: Path, limit: str, usage: str, reclaimable: str) -> list[int]:
    """Return a list with the number of bytes that a control group (cgroup) still allows.

    The list has one entry. It is empty if the group has no limit or its files cannot be read.

    Args:
        folder: Folder of the group under sys/fs/cgroup.
        limit: Name of the file with the maximum number of bytes.
        usage: Name of the file with the number of used bytes.
        reclaimable: Key in the file memory.stat of the used bytes that the kernel can drop.
    """
    try:
        maximum, used = ((folder / name).read_text().strip() for name in (limit, usage))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return []
    if not maximum.isdecimal():  # "max"
        return []
    return [int(maximum) - int(used) + int(stat.get(reclaimable, 0))]


@cache
def commit() -> str | None:
    """Return the short hash of the commit of this package's git checkout.

    The value is computed at the first call. Files that a command writes into the checkout later do
    not change the value.

    Returns:
        The hash, with "+" at its end if tracked files outside `results` are modified. None if git
        is not installed, or if the package is not tracked in a git checkout. A package that is
        installed inside the checkout of another project is not tracked there.
    """
    file = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)

    try:
        git("ls-files", "--error-unmatch", file.name)
        changes = git("status", "--porcelain", "-uno", "--", ":(top)", ":(top,exclude)results")
        return git("rev-parse", "--short", "HEAD").strip() + "+" * bool(changes)
    except (OSError, subprocess.CalledProcessError):
        return None
