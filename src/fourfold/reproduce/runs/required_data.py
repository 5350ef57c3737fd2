"""Search for the data files that the trainings of a table require, and hashes of these files."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from fourfold.atomic_files import sha256
from fourfold.errors import InputError
from fourfold.reproduce.tables import Table


def find_files(table: Table, tier: str) -> dict[str, Path]:
    """Locate the data files of a tier in the current directory or in $FOURFOLD_DATA.

    Raises:
        InputError: A file is missing.
    """
    located: dict[str, Path] = {}
    recipe = table.tiers[tier]
    roots = (Path(), Path(os.environ.get("FOURFOLD_DATA", ".")))
    for name in recipe.files:
        names = [name, name.replace(".tsv.gz", ".tsv")]  # GLUE's files may be uncompressed
        available = [(n, root / n) for n in names for root in roots if (root / n).exists()]
        if not available:
            hint = f"put it into the current directory or into $FOURFOLD_DATA ({recipe.origin})"
            message = f"the file is required by {table.name}, tier {tier}; {hint}"
            raise InputError(message, file=name)
        located.update(available[:1])
    return located


def hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Compute the SHA-256 of each file or directory.

    The hash of a directory covers the names and sizes of the files in it. Their content is not
    read, because that would take longer than many trainings for a directory such as ImageNet.
    """
    return {name: _hash(path) for name, path in files.items()}


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file or directory as a hexadecimal string."""
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders.sort()
        inside = os.path.relpath(folder, path)
        for name in sorted(names):
            size = os.stat(os.path.join(folder, name)).st_size
            digest.update(os.fsencode(f"{os.path.join(inside, name)} {size}\n"))
    return digest.hexdigest()
