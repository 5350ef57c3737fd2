"""The data of a table's trainings: where they lie, and by what they are known again."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fourfold.commands.row_plan import SECTIONS
from fourfold.commands.row_runs import Run
from fourfold.core.errors import InputError
from fourfold.papers.tables import Table

INIT_FROM = f"--{SECTIONS['model']}init_from"  # in a row's changes; a start has a shorter option


def find_files(table: Table, tier: str) -> dict[str, Path]:
    """The data of a tier, by name.

    Raises:
        InputError: One is missing; says what to put where.
    """
    found, recipe = dict[str, Path](), table.tiers[tier]
    roots = (Path(), Path(os.environ.get("FOURFOLD_DATA", ".")))
    for name in recipe.files:
        # GLUE's files are read plain, too.
        names = (name, name.removesuffix(".gz")) if name.endswith(".tsv.gz") else (name,)
        there = [(n, root / n) for n in names for root in roots if (root / n).exists()]
        if not there:
            raise InputError(
                f"{table.name}, tier {tier} needs {name}: put it here, or under a directory that"
                f" FOURFOLD_DATA names ({recipe.origin})"
            )
        found.update(there[:1])
    return found


def check_weights(runs: Iterable[Run]) -> None:
    """Make sure that weights which rows name are there, or on a hub.

    Raises:
        InputError: Some are not; says what to put where.
    """
    for run in runs:
        given = dict(zip(run.test[::2], run.test[1::2], strict=True))
        name = given.get(INIT_FROM)
        if name is None:
            continue
        from fourfold.hub.directory import CONFIG, located  # imports torch

        try:
            located(name, (CONFIG,))
        except InputError as error:
            raise InputError(
                f"{run.title} needs weights: {error}; put their directory (config.json, weights,"
                f" tokenizer) here as {name}"
            ) from error


def hashes(files: dict[str, Path]) -> dict[str, str]:
    """SHA-256 of each file; of a directory, of the names and sizes of all that is in it.

    To read ImageNet takes longer than many a run, and pictures that were left out or made smaller
    show in names and sizes.
    """
    return {
        name: _listed(place) if place.is_dir() else _read(place) for name, place in files.items()
    }


def _read(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _listed(directory: Path) -> str:
    found = hashlib.sha256()
    for folder, below, names in os.walk(directory, followlinks=True):
        below.sort()
        inside = os.path.relpath(folder, directory)
        for name in sorted(names):
            size = os.stat(os.path.join(folder, name)).st_size
            found.update(os.fsencode(f"{os.path.join(inside, name)} {size}\n"))
    return found.hexdigest()
