"""One training of a table's row: what it is made of, what it found, and how it goes on."""

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.commands import child
from fourfold.commands.config_files import fingerprints, refuse_edited
from fourfold.commands.row_machine import HERE, Machine
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.errors import InputError
from fourfold.files import write_whole
from fourfold.papers.tables import Recipe


@dataclass(frozen=True)
class Run:
    """One training of a row with one seed, and its test.

    Args:
        table: The name of the row's table.
        row: The row's name.
        part: The name of what is learned from the first training or beside it; "" for that itself.
        seed: The seed.
        folder: The run directory.
        recipe: What it follows.
        fit: Options of `fourfold fit`; none where nothing is trained.
        test: Options of `fourfold test`.
        starts: Runs of which it needs the weights or the words.
        minutes: That it takes, from a measurement; None if there was none.
        machine: Where it is trained, which is no part of what it is.
    """

    table: str
    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]
    starts: tuple["Run", ...] = ()
    minutes: float | None = None
    machine: Machine = HERE

    @property
    def title(self) -> str:
        """Which it is, to be printed."""
        return title(self.table, self.row, self.part, self.seed)

    @cached_property
    def configs(self) -> dict[str, str]:
        """Its config files, each with a hash of what it says."""
        return fingerprints(self.test)

    @cached_property
    def stamp(self) -> str:
        """SHA-256 of all that decides what it finds, but for the data.

        That is its options, what its config says, and the stamps of what it starts from: neither
        where it is run nor where its files lie. Runs of several tables may be the same one.
        """
        starts = {str(run.folder): run.stamp for run in self.starts}
        said = [list(_portable(given, starts)) for given in (self.fit, self.test)]
        text = json.dumps([said, list(self.configs.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _note(self) -> Path:
        """Beside the directory, which only the training makes and takes away."""
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def begun(self) -> dict[str, Any] | None:
        """Stamp, configs and data that its directory was begun with.

        None if there is no directory, or nothing is known of it: it was made by hand.
        """
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        is_note = isinstance(noted, dict) and {"stamp", "configs", "data"} <= noted.keys()
        return noted if is_note and self.folder.is_dir() else None

    @property
    def found(self) -> dict[str, Any] | None:
        """What its directory says of it: how long it took, its metrics, and how they were obtained.

        None if it is not done, or done where its directory is no more.

        Raises:
            InputError: It was made by hand, with other options or by a config that has changed.
        """
        place = RunDirectory(self.folder)
        begun, content = self.begun, place.metrics
        if content and begun is None:
            content = place.metrics_of(self.verbs["test"])
        if content is None:
            return None
        metrics = {k: v for k, v in content.items() if isinstance(v, int | float | str)}
        commands = begun["commands"] if begun and "commands" in begun else self.commands
        about = {"seconds": self.seconds, "metrics": metrics, "commands": commands}
        return {**about, **content["run"]}

    @property
    def has_weights(self) -> bool:
        """Whether there is a checkpoint for others to start from, if it trains at all."""
        return not self.fit or any((self.folder / "checkpoints").glob("*.ckpt"))

    @cached_property
    def verbs(self) -> dict[str, list[str]]:
        """What is run, with its options on this machine.

        Raises:
            InputError: As of `Machine.cut`.
        """
        given = {"fit": self.fit, "test": self.test} if self.fit else {"test": self.test}
        found = {verb: self.machine.options(options) for verb, options in given.items()}
        for key, value in self._cut.items():
            for verb in found:
                if verb == "fit" or key.startswith("data."):  # what fits there fits in a test
                    found[verb] += [f"--{key}", str(value)]
        return found

    @cached_property
    def _cut(self) -> dict[str, int]:
        """How the recipe's batch is cut for the machine."""
        return self.machine.cut(self.fit)

    @property
    def commands(self) -> list[str]:
        """What is run, as one would type it."""
        return [shlex.join(["fourfold", verb, *given]) for verb, given in self.verbs.items()]

    @cached_property
    def _clock(self) -> Path:
        return self.folder / "seconds.json"

    @property
    def seconds(self) -> float | None:
        """What its parts took that came to an end; None where there is none."""
        try:
            return float(json.loads(self._clock.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def go(self, held: int, limit: float | None, data: Mapping[str, str]) -> int:
        """Train and test it, or what is left of that.

        Args:
            held: The lock.
            limit: Seconds after which it is stopped, to go on another time.
            data: SHA-256 of the files that are learned from, by name.

        Returns:
            0, or the exit code of what failed or was stopped.

        Raises:
            InputError: As of `Machine.cut`; or it was begun with its batch cut in another way, or a
                config was edited meanwhile.
        """
        begin = time.monotonic()
        environment = {"WANDB_RUN_GROUP": self.folder.parent.name, **os.environ}
        # Before it begins: what is edited meanwhile is not what it was trained with.
        noted = {"stamp": self.stamp, "configs": self.configs, "data": dict(data),
                 "commands": self.commands, "cut": self._cut}  # fmt: skip
        begun = self.begun
        if begun and begun.get("cut", {}) != self._cut:  # the order of rows is of its batches
            raise InputError(
                f"{self.folder} was begun with its batch cut for another machine: go on with that"
                " --machine and --memory, or remove it"
            )
        write_whole(self._note, json.dumps(noted))
        try:
            for verb, options in self.verbs.items():
                refuse_edited(self.configs, self.test)  # each child reads them anew
                left = None if limit is None else max(0.0, limit - (time.monotonic() - begin))
                if code := child.run(verb, options, environment, [held], left):
                    return code
            return 0
        finally:
            spent = (self.seconds or 0.0) + time.monotonic() - begin
            if self.folder.is_dir():
                self._clock.write_text(json.dumps(round(spent, 1)), encoding="utf-8")


def title(table: str, row: str, part: str, seed: int) -> str:
    """Which run of a table it is."""
    return f"{table}, row {row}, {part + ', ' if part else ''}seed {seed}"


def _portable(options: list[str], starts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options without places; for what is started from stands its stamp."""
    for key, value in zip(options[::2], options[1::2], strict=True):
        if key in ("--config", "--run_dir"):
            continue
        for folder, stamp in starts.items():
            if value == folder or value.startswith(f"{folder}/"):
                value = stamp + value.removeprefix(folder)
        yield key, value
