"""The data of a table's trainings: where they lie, and by what they are known again."""

import hashlib
import os
from pathlib import Path

from fourfold.core.errors import InputError
from fourfold.papers.tables import Table


def find_files(table: Table, tier: str) -> dict[str, Path]:
    """The data of a tier, by name.

    Raises:
        InputError: One is missing; says what to put where.
    """
    found, recipe = {}, table.tiers[tier]
    for name in recipe.files:
        places = [Path(name), Path(os.environ.get("FOURFOLD_DATA", ".")) / name]
        there = next((place for place in places if place.exists()), None)
        if there is None:
            raise InputError(
                f"{table.name}, tier {tier} needs {name}: put it here, or under a directory that"
                f" FOURFOLD_DATA names ({recipe.origin})"
            )
        found[name] = there
    return found


def hashes(files: dict[str, Path]) -> dict[str, str]:
    """SHA-256 of each file."""
    found = {}
    for name, file in files.items():
        with file.open("rb") as content:
            found[name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found
