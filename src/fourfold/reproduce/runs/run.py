"""Training run of one row (line) of a table: machine, options, identity, results and execution.

A run is the training and test of one row with one seed. The identity of a run is its stamp, a
SHA-256 hash of everything that determines the result of the run, except the data.
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
    """Devices that a recipe is trained on.

    The batch of the recipe is split over the devices and over accumulation steps, so that the
    global batch, the samples of one optimizer step on all devices, stays that of the recipe.

    Args:
        config: File with options of the Trainer such as configs/trainer/ddp.yaml; None for the
            devices that the recipe names.
        memory: Memory of one device in GiB, which limits the micro-batch; None for no limit.

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
        """Return a new list of options: `given`, followed by `--config` with this machine's config.

        The config comes last so that its options override those of the recipe.
        """
        return [*given, *(["--config", self.config] if self.config else [])]

    def split_batch(self, fit: list[str]) -> dict[str, int]:
        """Compute the options that keep the samples per optimizer step of a recipe on this machine.

        Args:
            fit: Options of `fourfold fit`; empty if nothing is trained.

        Returns:
            Values by key of the option, such as trainer.accumulate_grad_batches; empty if the
            options of the recipe need no change.

        Raises:
            InputError: The data that determine the model's size are missing, the batch is not
                divisible by the number of devices, no micro-batch fits into memory, or the model
                has batch norms and the micro-batch would be smaller than the recipe's.
        """
        from fourfold.commands.plan import micro_batch_options

        if self == RECIPE_MACHINE or not fit:
            return {}
        return micro_batch_options(self.options(fit), self.memory)


RECIPE_MACHINE = Machine()  # the devices named in the recipe


@dataclass(frozen=True)
class Run:
    """Training and test of one row of a table with one seed.

    Args:
        table: Name of the table, PAPER/TABLE.
        row: Name of the row of the table.
        part: Name of the training, such as a fine-tuning, among those after the first training of
            the row; "" for the first training.
        seed: Random seed.
        folder: Run directory, which holds checkpoints and metrics.
        recipe: Recipe that the run follows.
        fit: Options of `fourfold fit`; empty if nothing is trained.
        test: Options of `fourfold test`.
        starts: Runs whose weights or tokenizer this run needs.
        minutes: Duration of the run in minutes, measured or estimated; None if it is unknown.
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
        """Hash of the content of each config file of the run, by path."""
        return fingerprints(self.test)

    @cached_property
    def stamp(self) -> str:
        """Identity of the run: SHA-256 of its options, its configs and the stamps of `starts`.

        The hash does not depend on the data, paths or devices. Runs of several tables may have the
        same stamp.
        """
        starts = {str(run.folder): run.stamp for run in self.starts}
        portable = [list(_portable(options, starts)) for options in (self.fit, self.test)]
        text = json.dumps([portable, list(self.configs.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def started_with(self) -> dict[str, Any] | None:
        """Record of the run that the existing run directory was started with.

        A dict with the keys `stamp`, `data` (hashes), `commands`, `cut` (options that split the
        batch for the machine) and `seconds` (duration so far). None if there is no run directory,
        or if the directory was created by hand and not by this class.
        """
        if not (self.folder.is_dir() and self._start_file.is_file()):
            return None
        return dict(json.loads(self._start_file.read_text(encoding="utf-8")))

    @property
    def _start_file(self) -> Path:
        """Path of the file next to the run directory that holds the content of `started_with`."""
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def seconds(self) -> float | None:
        """Time in seconds that training and test have taken so far; None if it is not known."""
        return (self.started_with or {}).get("seconds")

    @property
    def result(self) -> dict[str, Any] | None:
        """Duration in seconds, metrics, commands and provenance of the run, by name.

        None if the run is not finished or its directory does not exist any more.

        Raises:
            InputError: The directory was created by hand, and its options differ from those of the
                run, or its config has changed since.
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
        """Options on the machine of the run, by command: "fit" (if it trains) and "test".

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
        """Values by key of the options that split the batch of the recipe for the machine."""
        return self.machine.split_batch(self.fit)

    @property
    def commands(self) -> list[str]:
        """Command lines of the run as a user would type them."""
        return [shlex.join(["fourfold", name, *given]) for name, given in self.options.items()]

    def execute(self, limit: float | None, data: Mapping[str, str]) -> int:
        """Train and test in subprocesses; an interrupted training is resumed.

        Args:
            limit: Seconds after which the training is saved and stopped; None for no limit.
            data: SHA-256 of each data file, by name, to be recorded with the run.

        Returns:
            0, or the exit code of the command that failed or was stopped.

        Raises:
            InputError: The batch cannot be split for the machine, the interrupted training had
                another split, or a config was edited while the run was in progress.
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
    """Return the name of one run in messages and records.

    Args:
        table: Name of the table, PAPER/TABLE.
        row: Name of the row of the table.
        part: Name of the training, such as a fine-tuning, among those after the first training of
            the row; "" for the first training.
        seed: Random seed.
    """
    return f"{table}, row {row}, {part + ', ' if part else ''}seed {seed}"


def _portable(options: list[str], starts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Iterate over pairs of option and value without paths, which differ between machines.

    Args:
        options: Options and values in alternation. `--config` and `--run_dir` are left out.
        starts: Stamps of the runs that this run starts from, by run directory. A stamp replaces the
            directory in values such as the path of a checkpoint.
    """
    for key, value in zip(options[::2], options[1::2], strict=True):
        if key in ("--config", "--run_dir"):
            continue
        for folder, stamp in starts.items():
            if value == folder or value.startswith(f"{folder}/"):
                value = stamp + value.removeprefix(folder)
        yield key, value
