"""On what, with what and how a table was obtained."""

from datetime import UTC, datetime
from typing import Any

import torch

from fourfold.bench.machine import installed, machine

PACKAGES = ("lightning", "tokenizers", "sacrebleu", "numpy")


def provenance(about: dict[str, Any]) -> dict[str, Any]:
    """`about`, with commit, versions, hardware and date.

    Args:
        about: What only the caller knows: command, data, runs, seconds.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {k: v for k, v in machine(device).items() if v is not None}
    versions = {name: version for name in PACKAGES if (version := installed(name))}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {**about, "finished": finished, "machine": found, "versions": versions}
