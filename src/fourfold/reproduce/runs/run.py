"""Training run of one row of a table: machine, options, identity, results and execution.

`tables` explains the terms. The stamp of a run is a SHA-256 hash of its options and configs and of
the stamp of the run that it starts from. It therefore covers everything that determines the result,
except the data.
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
from fourfold.commands.config_files import check_unedited, entries, fingerprints, read_tree
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.precision import AUTO
from fourfold.errors import InputError
from fourfold.reproduce.tables import Recipe

# Options that describe the machine and not the recipe. They change results only by rounding errors.
MACHINE_OPTIONS = (
    *(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "strategy")),
    *(f"trainer.{name}" for name in ("precision", "benchmark", "deterministic")),
    "data.num_workers",
)
NAMES = ("table", "row", "part", "seed")  # fields that identify a run in its record


@dataclass(frozen=True)
class Machine:
    """Devices for a training, over which the batch of the recipe is split.

    The number of samples per optimizer step on all devices together does not change.

    Raises:
        InputError: The config sets an option other than `MACHINE_OPTIONS`.
    """

    config: str | None = None  # options of the Trainer; None for the devices of the recipe
    memory: float | None = None  # of one device in GiB, which limits the micro-batch

    def __post_init__(self) -> None:
        for key, line, node in entries(read_tree(Path(self.config)) if self.config else None):
            problem = ""
            if key not in MACHINE_OPTIONS and not isinstance(node, yaml.MappingNode):
                problem = f"belongs to the recipe; --machine takes {', '.join(MACHINE_OPTIONS)}"
            elif key == "trainer.devices" and node.value in ("auto", "-1"):
                problem = f"must be a number by which the batch can be divided, got {node.value}"
            if problem:
                raise InputError(problem, option=key, file=self.config, line=line)

    def options(self, given: list[str]) -> list[str]:
        """Return command-line options with the config of this machine, which overrides them."""
        return [*given, *(["--config", self.config] if self.config else [])]


@dataclass(frozen=True)
class Run:
    """One training of a row of a table with one seed, and the test of the trained model."""

    table: str  # PAPER/TABLE
    row: str
    part: str  # "" for the first training of the row
    seed: int
    folder: Path  # run directory
    recipe: Recipe
    fit: list[str]  # options of `fourfold fit`; empty if nothing is trained
    test: list[str]  # options of `fourfold test`
    start: "Run | None"  # provides the initial weights, the tokenizer or the teacher
    minutes: float | None  # measured or estimated duration
    machine: Machine  # the stamp does not depend on it

    @property
    def names(self) -> dict[str, Any]:
        """Dict with the fields `table`, `row`, `part` and `seed`, which identify the run."""
        return {key: getattr(self, key) for key in NAMES}

    @property
    def title(self) -> str:
        """Title of the run in messages, such as "gpt2_2019/table2, row small, seed 0"."""
        return title_of(self.names)

    @cached_property
    def configs(self) -> dict[str, str]:
        """SHA-256 of the content of each config file, by path of the file."""
        return fingerprints(self.test)

    @cached_property
    def stamp(self) -> str:
        """Hash of options, configs and the stamp of `start`, but not of data, paths or devices.

        Runs of several tables may have the same stamp.
        """
        portable = [list(_portable(options, self.start)) for options in (self.fit, self.test)]
        text = json.dumps([portable, list(self.configs.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def _note_file(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def note(self) -> dict[str, Any]:
        """Description of the training in the run directory; empty if `execute` has not made it.

        The keys are `stamp`, `data` (hashes by name of the file), `commands`, `cut` (options that
        split the batch for the machine) and `seconds` (duration so far).
        """
        if not (self.folder.is_dir() and self._note_file.is_file()):
            return {}
        return dict(json.loads(self._note_file.read_text(encoding="utf-8")))

    @property
    def result(self) -> dict[str, Any] | None:
        """Result of the finished run: `seconds`, `metrics`, `commands`, and its origin.

        The origin has the keys that `fourfold test` writes, such as commit and hardware.

        Raises:
            InputError: The directory was not created by `execute`, and it holds the metrics of a
                run with other options or with another content of the config files.
        """
        directory = RunDirectory(self.folder)
        note = self.note
        content = directory.metrics
        if content and not note:
            content = directory.metrics_of(self.options["test"])
        if content is None:
            return None
        about = {
            "seconds": note.get("seconds"),
            "metrics": {k: v for k, v in content.items() if isinstance(v, int | float | str)},
            "commands": note["commands"] if note else self.commands,
        }
        return {**about, **content["run"]}

    def with_starts(self) -> Iterator["Run"]:
        """Iterate over all runs that have to be finished before this run, then over this run."""
        if self.start:
            yield from self.start.with_starts()
        yield self

    @cached_property
    def options(self) -> dict[str, list[str]]:
        """Command-line options of "fit" (if the run trains a model) and "test", for the machine."""
        options = {"fit": self.fit, "test": self.test} if self.fit else {"test": self.test}
        adapted = {command: self.machine.options(given) for command, given in options.items()}
        for key, value in self.batch_split.items():
            for command, given in adapted.items():
                if command == "fit" or key.startswith("data."):  # a test needs no more memory
                    given += [f"--{key}", str(value)]
        return adapted

    @cached_property
    def batch_split(self) -> dict[str, int]:
        """Options that split the batch, such as {"trainer.accumulate_grad_batches": 4}.

        Raises:
            InputError: A file that determines the vocabulary size is missing, the batch is not
                divisible by the number of devices, no micro-batch fits into memory, or the model
                has batch norms and the micro-batch would be smaller than that of the recipe.
        """
        from fourfold.commands.plan import micro_batch_options

        if self.machine == Machine() or not self.fit:
            return {}
        return micro_batch_options(self.machine.options(self.fit), self.machine.memory)

    @property
    def commands(self) -> list[str]:
        """Command lines of the training and the test, as a user would type them in a shell."""
        return [shlex.join(["fourfold", name, *given]) for name, given in self.options.items()]

    def execute(self, limit: float | None, data: Mapping[str, str]) -> int:
        """Train and test in subprocesses, and resume an interrupted training.

        Raises:
            InputError: The batch cannot be split for the machine, the batch of the interrupted
                training was split in another way, or a config was edited during the run.
        """
        start = time.monotonic()
        environment = {"WANDB_RUN_GROUP": self.folder.parent.name, **os.environ}
        previous = self.note
        if previous and previous["cut"] != self.batch_split:  # changes the order of samples
            hint = "resume with the same --machine and --memory, or remove the directory"
            message = f"was started with the batch split for another machine; {hint}"
            raise InputError(message, option=str(self.folder))
        before = previous.get("seconds", 0.0)
        note: dict[str, Any] = {"stamp": self.stamp, "data": dict(data), "commands": self.commands}
        note |= {"cut": self.batch_split, "seconds": before}
        # Written before the training starts: a config that is edited later is not recorded.
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._note_file, json.dumps(note))
        try:
            for command, options in self.options.items():
                check_unedited(self.configs, self.test)  # each subprocess reads the configs again
                left = None if limit is None else max(0.0, limit - (time.monotonic() - start))
                if code := subprocess_runs.run(command, options, environment, left):
                    return code
            return 0
        finally:
            note["seconds"] = round(before + time.monotonic() - start, 1)
            write_atomically(self._note_file, json.dumps(note))


def title_of(run: Mapping[str, Any]) -> str:
    """Return the title of the run with these names, such as "gpt2_2019/table2, row small, seed 0".

    Other entries of the mapping are ignored.
    """
    part = f", {run['part']}" if run["part"] else ""
    return f"{run['table']}, row {run['row']}{part}, seed {run['seed']}"


def _portable(options: list[str], start: Run | None) -> Iterator[tuple[str, str]]:
    """Iterate over (option, value) pairs in which no path depends on the machine."""
    # A path in the directory of `start` is replaced by its stamp. The precision "auto" describes
    # the processor and not the recipe.
    for key, value in zip(options[::2], options[1::2], strict=True):
        if start and f"{value}/".startswith(f"{start.folder}/"):
            value = start.stamp + value.removeprefix(str(start.folder))
        if key not in ("--config", "--run_dir") and (key, value) != ("--trainer.precision", AUTO):
            yield key, value
