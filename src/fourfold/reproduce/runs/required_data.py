"""Search for the data files that the trainings of a table require, and hashes of these files."""

import hashlib
import os
from pathlib import Path

from fourfold.errors import InputError
from fourfold.reproduce.tables import Table


def find_files(table: Table, tier: str) -> dict[str, Path]:
    """Locate the data files of a tier in the current directory or in $FOURFOLD_DATA.

    Args:
        table: Table.
        tier: Name of one of the table's tiers, such as laptop.

    Returns:
        Paths of the files and directories by their names in `Tier.files`. The name of a file of
        GLUE has no .gz if only the uncompressed file was found.

    Raises:
        InputError: A file is missing.
    """
    located: dict[str, Path] = {}
    recipe = table.tiers[tier]
    roots = (Path(), Path(os.environ.get("FOURFOLD_DATA", ".")))
    for name in recipe.files:
        # GLUE's files may also be uncompressed.
        names = (name, name.removesuffix(".gz")) if name.endswith(".tsv.gz") else (name,)
        available = [(n, root / n) for n in names for root in roots if (root / n).exists()]
        if not available:
            raise InputError(
                f"the file is required by {table.name}, tier {tier}; put it into the current"
                f" directory or into $FOURFOLD_DATA ({recipe.origin})",
                file=name,
            )
        located.update(available[:1])
    return located


def hashes(files: dict[str, Path]) -> dict[str, str]:
    """Compute the SHA-256 of each file or directory.

    The hash of a directory covers the names and sizes of the files in it. Their content is not
    read, because that would take longer than many trainings for a directory such as ImageNet.

    Args:
        files: Paths of files and directories, by name.

    Returns:
        The hashes, by name.
    """
    return {
        name: _hash_listing(path) if path.is_dir() else _hash_file(path)
        for name, path in files.items()
    }


def _hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _hash_listing(directory: Path) -> str:
    """Return the SHA-256 of the names and sizes of all files in a directory tree."""
    digest = hashlib.sha256()
    for folder, subfolders, names in os.walk(directory, followlinks=True):
        subfolders.sort()
        inside = os.path.relpath(folder, directory)
        for name in sorted(names):
            size = os.stat(os.path.join(folder, name)).st_size
            digest.update(os.fsencode(f"{os.path.join(inside, name)} {size}\n"))
    return digest.hexdigest()
