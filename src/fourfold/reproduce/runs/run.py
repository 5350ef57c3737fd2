"""Training run of a table row (line): machine, options, identity, results and execution.

The identity of a run is its stamp, a SHA-256 hash of everything that determines the result of the
run, except the data.
"""

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

import yaml

from fourfold.atomic_files import write_atomically
from fourfold.commands import subprocess_runs
from fourfold.commands.train.config_files import check_unedited, entries, fingerprints, read_tree
from fourfold.commands.train.run_directory import RunDirectory
from fourfold.core.validation import check_range
from fourfold.errors import InputError
from fourfold.reproduce.tables import Recipe

# Options that describe the machine and not the recipe. They change results by rounding only.
MACHINE_OPTIONS = (
    *(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "strategy")),
    *(f"trainer.{name}" for name in ("precision", "benchmark", "deterministic")),
    "data.num_workers",
)


@dataclass(frozen=True)
class Machine:
    """Devices for which the batch of a recipe is split so that the global batch stays the same.

    Args:
        config: Config of the Trainer such as configs/trainer/ddp.yaml; None for the recipe's own.
        memory: Memory of one device in GiB; None if every micro-batch fits.

    Raises:
        InputError: The config sets an option that belongs to the recipe, or `memory` is invalid.
    """

    config: str | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            check_range("--memory", self.memory, above=0.0)
        tree = read_tree(Path(self.config)) if self.config else None
        for key, line, node in entries(tree):
            problem = ""
            if key not in MACHINE_OPTIONS and not isinstance(node, yaml.MappingNode):
                problem = f"belongs to the recipe; --machine takes {', '.join(MACHINE_OPTIONS)}"
            elif key == "trainer.devices" and node.value in ("auto", "-1"):
                problem = f"must be a number by which the batch can be divided, got {node.value}"
            if problem:
                raise InputError(problem, option=key, file=self.config, line=line)

    def options(self, given: list[str]) -> list[str]:
        """Return options followed by the config of this machine, which overrides the recipe."""
        return [*given, *(["--config", self.config] if self.config else [])]

    def split_batch(self, fit: list[str]) -> dict[str, int]:
        """Compute the options, by key, that keep the global batch of a recipe on this machine.

        Args:
            fit: Options of `fourfold fit`; empty if nothing is trained.

        Raises:
            InputError: The data that determine the model's size are missing, the batch is not
                divisible by the number of devices, or no micro-batch fits into memory.
        """
        from fourfold.commands.plan import micro_batch_options

        if self == RECIPE_MACHINE or not fit:
            return {}
        return micro_batch_options(self.options(fit), self.memory)


RECIPE_MACHINE = Machine()  # the devices named in the recipe


@dataclass(frozen=True)
class Run:
    """Training and test of one table row with one seed.

    Args:
        table: Name of the table, PAPER/TABLE.
        row: Name of the row.
        part: Name of a training that follows the first training of the row or runs beside it; ""
            for the first training.
        seed: Random seed.
        folder: Run directory, which holds checkpoints and metrics.
        recipe: Recipe that the run follows.
        fit: Options of `fourfold fit`; empty if nothing is trained.
        test: Options of `fourfold test`.
        starts: Runs whose weights or tokenizer this run needs.
        minutes: Measured duration of the run in minutes; None if it was never measured.
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

    @property
    def started_with(self) -> dict[str, Any] | None:
        """Stamp, data hashes, commands, batch split and seconds of the existing run directory.

        None if there is no run directory, or if the user created it by hand.
        """
        if not (self.folder.is_dir() and self._start_file.is_file()):
            return None
        return dict(json.loads(self._start_file.read_text(encoding="utf-8")))

    @property
    def _start_file(self) -> Path:
        """File next to the run directory that holds `started_with`."""
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def seconds(self) -> float | None:
        """Time in seconds that the run has taken so far; None if it is not known."""
        return (self.started_with or {}).get("seconds")

    @property
    def result(self) -> dict[str, Any] | None:
        """Duration in seconds, metrics, commands and provenance of a finished run.

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
        commands = started["commands"] if started else self.commands
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

    def execute(self, limit: float | None, data: Mapping[str, str]) -> int:
        """Train and test, or resume a training that was interrupted.

        Args:
            limit: Seconds after which the training is saved and stopped; None for no limit.
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
        if started and started["cut"] != self._batch_split:  # changes the order of samples
            raise InputError(
                "was started with the batch split for another machine; resume with the same"
                " --machine and --memory, or remove the directory",
                option=str(self.folder),
            )
        before = self.seconds or 0.0
        note: dict[str, Any] = {"stamp": self.stamp, "data": dict(data), "commands": self.commands}
        note |= {"cut": self._batch_split, "seconds": before}
        # Written before the training starts: a config that is edited later is not recorded.
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._start_file, json.dumps(note))
        try:
            for command, options in self.options.items():
                check_unedited(self.configs, self.test)  # each subprocess reads the configs again
                left = None if limit is None else max(0.0, limit - (time.monotonic() - start))
                if code := subprocess_runs.run(command, options, environment, left):
                    return code
            return 0
        finally:
            note["seconds"] = round(before + time.monotonic() - start, 1)
            write_atomically(self._start_file, json.dumps(note))


def run_title(table: str, row: str, part: str, seed: int) -> str:
    """Return the name of one run of a table."""
    return f"{table}, row {row}, {part + ', ' if part else ''}seed {seed}"


def _portable(options: list[str], starts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield options without paths; run directories of `starts` are replaced by their stamps."""
    for key, value in zip(options[::2], options[1::2], strict=True):
        if key in ("--config", "--run_dir"):
            continue
        for folder, stamp in starts.items():
            if value == folder or value.startswith(f"{folder}/"):
                value = stamp + value.removeprefix(folder)
        yield key, value
