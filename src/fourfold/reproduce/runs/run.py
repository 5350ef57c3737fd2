"""Training run of one row (line) of a table: machine, options, identity, results and execution.

A run is one training with one seed, followed by a test. A row of a table may need several runs. A
run may start from another run, which provides the initial weights, the tokenizer or the teacher.
The stamp of a run is a SHA-256 hash of its options and configs and of the stamp of the run that it
starts from. The stamp therefore covers everything that determines the result, except the data.
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
from fourfold.core.precision import AUTO
from fourfold.core.validation import check_range
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
    """Devices for a training, which may differ from the devices in the recipe.

    The batch of the recipe is split over the devices and over accumulation steps. The number of
    samples per optimizer step on all devices together does not change.

    Args:
        config: YAML file with options of the Trainer, for example configs/trainer/ddp.yaml; None
            for the devices that the recipe names.
        memory: Memory of one device in GiB, which limits the micro-batch; None for no limit.

    Raises:
        InputError: The config sets an option other than `MACHINE_OPTIONS`, or `memory` is not
            positive.
    """

    config: str | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            check_range("--memory", self.memory, above=0.0)
        for key, line, node in entries(read_tree(Path(self.config)) if self.config else None):
            problem = ""
            if key not in MACHINE_OPTIONS and not isinstance(node, yaml.MappingNode):
                problem = f"belongs to the recipe; --machine takes {', '.join(MACHINE_OPTIONS)}"
            elif key == "trainer.devices" and node.value in ("auto", "-1"):
                problem = f"must be a number by which the batch can be divided, got {node.value}"
            if problem:
                raise InputError(problem, option=key, file=self.config, line=line)

    def options(self, given: list[str]) -> list[str]:
        """Return command-line options, followed by `--config` with the config of this machine.

        Options of the config of this machine override earlier options. Without such a config, the
        options are returned unchanged.

        Args:
            given: Options of `fourfold fit` or `fourfold test`; the list is not changed.
        """
        return [*given, *(["--config", self.config] if self.config else [])]


@dataclass(frozen=True)
class Run:
    """One training of a row of a table with one seed, and the test of the trained model.

    Args:
        table: Name of the table, PAPER/TABLE.
        row: Name of the row of the table.
        part: Name of a training that follows the first training of the row, such as a fine-tuning;
            "" for the first training.
        seed: Random seed.
        folder: Run directory, which holds checkpoints and metrics.
        recipe: Recipe of the training, an entry of the table's YAML file.
        fit: Options of `fourfold fit`; empty if nothing is trained.
        test: Options of `fourfold test`.
        start: Run that provides the initial weights, the tokenizer or the teacher of this run; None
            if no other run is needed.
        minutes: Duration of the run in minutes, measured or estimated; None if it is unknown.
        machine: Devices for the training. The hash `stamp` does not depend on the devices.
    """

    table: str
    row: str
    part: str
    seed: int
    folder: Path
    recipe: Recipe
    fit: list[str]
    test: list[str]
    start: "Run | None"
    minutes: float | None
    machine: Machine

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
        """SHA-256 of the content of each config file, as hexadecimal text, by path of the file."""
        return fingerprints(self.test)

    @cached_property
    def stamp(self) -> str:
        """Hash (SHA-256) that identifies the training and the test, as hexadecimal text.

        The hash covers the options, the content of the config files, and the stamp of `start`. It
        does not depend on the data, paths or devices. Runs of several tables may have the same
        stamp.
        """
        portable = [list(_portable(options, self.start)) for options in (self.fit, self.test)]
        text = json.dumps([portable, list(self.configs.values())])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def _note_file(self) -> Path:
        """Path of the JSON file that describes the training, next to the run directory."""
        return self.folder.with_name(f".{self.folder.name}.json")

    @property
    def note(self) -> dict[str, Any]:
        """Description of the training in the run directory, as written by `execute`.

        The keys are `stamp` (hash of options and configs), `data` (SHA-256 of each data file by
        name), `commands`, `cut` (options that split the batch for the machine) and `seconds`
        (duration so far). The dict is empty if there is no run directory, or if the directory was
        not created by `execute`.
        """
        if not (self.folder.is_dir() and self._note_file.is_file()):
            return {}
        return dict(json.loads(self._note_file.read_text(encoding="utf-8")))

    @property
    def result(self) -> dict[str, Any] | None:
        """Result of the finished run.

        The keys are `seconds` (duration), `metrics` (values by name), `commands`, and the keys that
        `fourfold test` writes about its origin, such as commit and hardware. The result is None if
        the run is not finished or its directory does not exist.

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
        """Iterate over all runs that have to be finished before this run, then over this run.

        They are the run `start` that provides the initial weights, tokenizer or teacher, the run
        that `start` itself starts from, and so on. The order is that of execution.
        """
        if self.start:
            yield from self.start.with_starts()
        yield self

    @cached_property
    def options(self) -> dict[str, list[str]]:
        """Lists of command-line options by command, with those that split the batch.

        The keys are "test" and, if the run trains a model, "fit".

        Raises:
            InputError: The batch of the recipe cannot be split for the machine.
        """
        options = {"fit": self.fit, "test": self.test} if self.fit else {"test": self.test}
        adapted = {command: self.machine.options(given) for command, given in options.items()}
        for key, value in self.batch_split.items():
            for command, given in adapted.items():
                if command == "fit" or key.startswith("data."):  # a test needs no more memory
                    given += [f"--{key}", str(value)]
        return adapted

    @cached_property
    def batch_split(self) -> dict[str, int]:
        """Options that split the batch of the recipe for the machine, as values by key.

        An example is {"trainer.accumulate_grad_batches": 4}. The dict is empty if the options of
        the recipe need no change.

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

        Args:
            limit: Seconds after which the training is saved and stopped; None for no limit.
            data: SHA-256 of each data file, by name, to be recorded with the run.

        Returns:
            0, or the exit code of the command that failed or was stopped.

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
    """Return the title of a run in messages, such as "gpt2_2019/table2, row small, seed 0".

    Args:
        run: Table, row, part and seed of the run, by these names. Other entries are ignored.
    """
    part = f", {run['part']}" if run["part"] else ""
    return f"{run['table']}, row {run['row']}{part}, seed {run['seed']}"


def _portable(options: list[str], start: Run | None) -> Iterator[tuple[str, str]]:
    """Iterate over (option, value) pairs in which no path depends on the machine.

    - The options `--config` and `--run_dir` are skipped.
    - If a value is a path in the directory of `start`, the directory is replaced by the stamp of
      `start`, a hash.
    - The precision "auto" is skipped, because it describes the processor and not the recipe.

    Args:
        options: Command-line options and values in alternation.
        start: Run that provides the initial weights, the tokenizer or the teacher; None if there is
            none.
    """
    for key, value in zip(options[::2], options[1::2], strict=True):
        if start and f"{value}/".startswith(f"{start.folder}/"):
            value = start.stamp + value.removeprefix(str(start.folder))
        if key not in ("--config", "--run_dir") and (key, value) != ("--trainer.precision", AUTO):
            yield key, value
