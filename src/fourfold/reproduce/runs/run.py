"""One training run of a table row: its options, identity (stamp), results and execution."""

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

from fourfold.atomic_files import write_atomically
from fourfold.commands import subprocess_runs
from fourfold.commands.train.config_files import check_unedited, fingerprints
from fourfold.commands.train.run_directory import RunDirectory
from fourfold.errors import InputError
from fourfold.reproduce.runs.machine import RECIPE_MACHINE, Machine
from fourfold.reproduce.tables import Recipe


@dataclass(frozen=True)
class Run:
    """Training and test of one table row with one seed.

    Args:
        table: Name of the table, PAPER/TABLE.
        row: Name of the row.
        part: Name of a training that follows the first one or runs beside it; "" for the first.
        seed: Random seed.
        folder: Run directory.
        recipe: Recipe that the run follows.
        fit: Options of `fourfold fit`; empty if nothing is trained.
        test: Options of `fourfold test`.
        starts: Runs whose weights or tokenizer this run needs.
        minutes: Measured duration of the run; None if it was never measured.
        machine: Devices that the run is trained on. They do not change the identity of the run.
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
    machine: Machine = RECIPE_MACHINE

    @property
    def title(self) -> str:
        """Name of the run in messages and records."""
        return run_title(self.table, self.row, self.part, self.seed)

    @cached_property
    def configs(self) -> dict[str, str]:
        """Config files of the run, each with a hash of its content."""
        return fingerprints(self.test)

    @cached_property
    def stamp(self) -> str:
        """SHA-256 of everything except the data that determines the result of the run.

        The hash covers the options, the content of the configs, and the stamps of the runs in
        `starts`, but no paths and no devices. Runs of several tables may have the same stamp.
        """
        starts = {str(run.folder): run.stamp for run in self.starts}
        portable = [list(_portable(options, starts)) for options in (self.fit, self.test)]
        text = json.dumps([portable, list(self.configs.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _start_file(self) -> Path:
        """File next to the run directory that holds what the run was started with."""
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def started_with(self) -> dict[str, Any] | None:
        """Stamp, configs and data that the run directory was started with.

        None if there is no run directory, or if the user created it by hand.
        """
        try:
            content = json.loads(self._start_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        is_valid = isinstance(content, dict) and {"stamp", "configs", "data"} <= content.keys()
        return content if is_valid and self.folder.is_dir() else None

    @property
    def result(self) -> dict[str, Any] | None:
        """Duration, metrics, commands and provenance of a finished run.

        None if the run is not finished or its directory is gone.

        Raises:
            InputError: The directory was created by hand, with other options or by a config that
                has changed since.
        """
        directory = RunDirectory(self.folder)
        started = self.started_with
        content = directory.metrics
        if content and started is None:
            content = directory.metrics_of(self.options["test"])
        if content is None:
            return None
        metrics = {k: v for k, v in content.items() if isinstance(v, int | float | str)}
        commands = started["commands"] if started and "commands" in started else self.commands
        return {"seconds": self.seconds, "metrics": metrics, "commands": commands, **content["run"]}

    @property
    def has_weights(self) -> bool:
        """True if the run trains nothing, or has a checkpoint that other runs can start from."""
        return not self.fit or any((self.folder / "checkpoints").glob("*.ckpt"))

    @cached_property
    def options(self) -> dict[str, list[str]]:
        """Options of each command (fit, test) on the machine of the run.

        Raises:
            InputError: The batch of the recipe cannot be split for the machine.
        """
        options = {"fit": self.fit, "test": self.test} if self.fit else {"test": self.test}
        adapted = {command: self.machine.options(given) for command, given in options.items()}
        for key, value in self._batch_split.items():
            for command, given in adapted.items():
                if command == "fit" or key.startswith("data."):  # a test needs no more memory
                    given += [f"--{key}", str(value)]
        return adapted

    @cached_property
    def _batch_split(self) -> dict[str, int]:
        """Options that split the batch of the recipe for the machine."""
        return self.machine.split_batch(self.fit)

    @property
    def commands(self) -> list[str]:
        """Commands of the run as a user would type them."""
        return [shlex.join(["fourfold", name, *given]) for name, given in self.options.items()]

    @cached_property
    def _seconds_file(self) -> Path:
        return self.folder / "seconds.json"

    @property
    def seconds(self) -> float | None:
        """Time in seconds that the run has taken so far; None if it was not started."""
        try:
            return float(json.loads(self._seconds_file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def execute(self, limit: float | None, data: Mapping[str, str]) -> int:
        """Train and test, or resume a training that was interrupted.

        Args:
            limit: Seconds after which the training is saved and stopped.
            data: SHA-256 of each data file, by name.

        Returns:
            0, or the exit code of the command that failed or was stopped.

        Raises:
            InputError: The batch cannot be split for the machine, the run was started with another
                split, or a config was edited while the run was in progress.
        """
        start = time.monotonic()
        environment = {"WANDB_RUN_GROUP": self.folder.parent.name, **os.environ}
        started = self.started_with
        if started and started.get("cut", {}) != self._batch_split:  # changes the order of rows
            raise InputError(
                "was started with the batch split for another machine; resume with the same"
                " --machine and --memory, or remove the directory",
                option=str(self.folder),
            )
        # Written before the training starts: a config that is edited later is not recorded.
        content = {
            "stamp": self.stamp,
            "configs": self.configs,
            "data": dict(data),
            "commands": self.commands,
            "cut": self._batch_split,
        }
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._start_file, json.dumps(content))
        try:
            for command, options in self.options.items():
                check_unedited(self.configs, self.test)  # each subprocess reads the configs again
                left = None if limit is None else max(0.0, limit - (time.monotonic() - start))
                if code := subprocess_runs.run(command, options, environment, left):
                    return code
            return 0
        finally:
            seconds = (self.seconds or 0.0) + time.monotonic() - start
            if self.folder.is_dir():
                self._seconds_file.write_text(json.dumps(round(seconds, 1)), encoding="utf-8")


def run_title(table: str, row: str, part: str, seed: int) -> str:
    """Name of one run of a table."""
    return f"{table}, row {row}, {part + ', ' if part else ''}seed {seed}"


def _portable(options: list[str], starts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options without paths; the run directory of a start run is replaced by its stamp."""
    for key, value in zip(options[::2], options[1::2], strict=True):
        if key in ("--config", "--run_dir"):
            continue
        for folder, stamp in starts.items():
            if value == folder or value.startswith(f"{folder}/"):
                value = stamp + value.removeprefix(folder)
        yield key, value
