"""`fourfold fit|validate|test|predict`: LightningCLI, with what it does wrong put right.

- A checkpoint never overwrites the config (`_parse_ckpt_path`).
- A run lives in one directory, and goes on there; nothing starts from scratch unasked.
- An option must be written out, and an error is one sentence.
"""

import logging
import shlex
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.rank_zero import rank_zero_only

import fourfold.data  # noqa: F401  (so that classes can be named without their module)
from fourfold.callbacks.checkpoint_io import AtomicCheckpointIO
from fourfold.commands.config_files import (
    check_files,
    config_files,
    fingerprints,
    is_given,
    locate_value,
)
from fourfold.commands.equipment import as_list, make_callbacks, scheduler
from fourfold.commands.errors import hidden_input_error, input_error
from fourfold.commands.loggers import loggers_of_a_test, make_loggers, users_loggers
from fourfold.commands.options import add_options, check_options
from fourfold.commands.parser import Parser, known_options
from fourfold.commands.results import show_table, write_metrics
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.sections import check_sections
from fourfold.commands.seeds import check_seed
from fourfold.commands.warm_start import begins_elsewhere, take_over
from fourfold.core.errors import InputError
from fourfold.data.datamodule import EpochData
from fourfold.tasks import Task
from fourfold.tasks.checkpoint import read_for_trainer

# Samplers know the ranks themselves; one batch of validation before training finds mistakes early.
# A config's batch is one device's: more of them are asked for, with their share of it.
TRAINER_DEFAULTS = {
    "devices": 1,
    "use_distributed_sampler": False,
    "num_sanity_val_steps": 1,
    "enable_model_summary": False,
}

NOISE = (
    ".*WeightAveraging callback with a model that overrides.*",
    ".*callbacks used to create the checkpoint need to be provided.*",
    ".*Total length of `list` across ranks is zero.*",  # there is no validation split
    ".*`isinstance.treespec, LeafSpec.*",
)


class FourfoldCLI(LightningCLI):
    """Parses, builds and runs one of the four commands.

    Args:
        command: Which.
        options: What stands after it.
    """

    run: RunDirectory
    start: Path | None  # the checkpoint that the command begins with
    shares_seed: bool  # whether the data have no seed of their own
    is_dry: bool  # whether it is only tried out, by fast_dev_run
    held: ExitStack  # what is given back when the command ends

    def __init__(self, command: str, options: list[str]) -> None:
        self.command, self.arguments = command, [command, *options]
        super().__init__(
            Task,
            EpochData,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"allow_abbrev": False, "prog": "fourfold"},
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            args=self.arguments,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Only the one that runs: each takes half a second to prepare."""
        return {self.command: super().subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Our own options, beside model, data and trainer."""
        add_options(parser)

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse, and say in which file a wrong key stands."""
        keys = {name.split(".")[0] for name in known_options(self._parser(self.command))}
        check_files(config_files(self.arguments), keys)
        self.config = parser.parse_args(self.arguments)
        check_seed("seed_everything", self.config[self.command]["seed_everything"])

    def _parse_ckpt_path(self) -> None:
        # Lightning's would let the checkpoint's hyper-parameters overwrite what the user wrote.
        pass

    def before_instantiate_classes(self) -> None:
        """Settle where the run lives, and what it goes on from, before anything is built."""
        config = self.config[self.command]
        check_sections(config)
        check_options(config)
        torch.set_float32_matmul_precision(config["fp32_products"])
        self.run = RunDirectory.of(config)
        config["run_dir"] = str(self.run.path)
        self.share_seed(config)
        self.is_dry = bool(config["trainer"]["fast_dev_run"])  # leaves nothing behind
        keeps = self.command == "fit" or self.run.config.is_file()
        take_over(config, self.arguments, self.run if keeps and not self.is_dry else None)
        given = config.get("ckpt_path")
        if self.command == "fit" and self.is_dry and given is None:
            self.start = None
        elif self.command == "fit":
            self.start = self.run.resume_from(config["resume"], given)
            if self.start and self.start.parent == self.run.checkpoints:
                self.run.refuse_another_model(self.recipe())
        elif given is None and not self.run.checkpoints.exists() and begins_elsewhere(config):
            self.start = None  # the weights that a training would begin with
        else:
            self.start = self.run.find(given)

    def share_seed(self, config: Any) -> None:
        """The data take over `seed_everything`, unless they are given a seed of their own."""
        args, seed = config["data"].get("init_args", {}), config["seed_everything"]
        self.shares_seed = "seed" in args and not is_given("data.seed", self.arguments)
        if self.shares_seed:
            args["seed"] = int(seed)

    def recipe(self) -> dict[str, Any]:
        """The model's part of the config as plain values."""
        self._dump_config()
        model: dict[str, Any] = self.config_dump["model"]
        return model

    def instantiate_classes(self) -> None:
        """Build model, data and Trainer.

        Raises:
            InputError: One of them does not take its arguments.
        """
        try:
            super().instantiate_classes()
            if self.start is not None:
                self.model.init_from = None  # the checkpoint holds all weights
        except ValueError as error:
            if self.command == "fit":
                self.run.remove_if_new()  # a tokenizer may be there by now
            found = hidden_input_error(error)
            raise found or InputError(" ".join(str(error).split())[:300]) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The Trainer, with what a run needs beside the user's callbacks, loggers and plugins."""
        config = self.config_init[self.command]
        given = config["trainer"]
        theirs = as_list(given["plugins"])
        kwargs["plugins"] = [*theirs, AtomicCheckpointIO(read_for_trainer), *scheduler(theirs)]
        kwargs["logger"] = False  # see before_fit
        ours = make_callbacks(self.command, self.run, config, self.dump())
        kwargs["callbacks"] = [*ours, *as_list(given["callbacks"])]
        kwargs["default_root_dir"] = str(self.run.path)
        return super().instantiate_trainer(**kwargs)

    def dump(self) -> str:
        """The whole config, as it can be given to `--config` again."""
        config = self.config[self.command].clone()
        config.pop("config", None)
        config["ckpt_path"] = None
        if self.shares_seed:  # or with another `seed_everything` it would keep this one
            del config["data"]["init_args"]["seed"]
        parser = self._parser(self.command)
        text: str = parser.dump(config, skip_unset=False, skip_validation=True)
        return text

    def _run_subcommand(self, subcommand: str) -> None:
        """Run; of a training that bad input stopped before its first checkpoint, leave nothing."""
        try:
            with ExitStack() as self.held:
                super()._run_subcommand(subcommand)
        except Exception as error:
            if subcommand == "fit" and input_error(error) is not None:
                self.run.remove_if_new()
            raise

    def before_fit(self) -> None:
        """Refuse bad data, and another training in the run's directory, before a file is made."""
        if self.trainer.world_size == 1:  # else the ranks must agree on a tokenizer as they build
            self.datamodule.setup("fit")
        if not self.is_dry:
            if getattr(rank_zero_only, "rank", 0) == 0:  # for the other processes, too
                self.held.enter_context(self.run.claimed())
            config = self.config_init[self.command]
            self.trainer.loggers = make_loggers(self.run, config, self.dump())

    def before_validate(self) -> None:
        """Tell the user's loggers what is measured."""
        if not self.is_dry:
            self.trainer.loggers = users_loggers(self.config_init["validate"])

    def before_test(self) -> None:
        """Measure into the W&B run of the training, where the user asks for one."""
        if not self.is_dry:
            self.trainer.loggers = loggers_of_a_test(self.run, self.config_init["test"])

    @property
    def measured(self) -> str:
        """Where the weights of an evaluation came from."""
        return str(self.start or self.model.init_from)

    def after_validate(self) -> None:
        """Print the metrics."""
        if not self.trainer.is_global_zero:
            return
        if not self.model.summary:
            raise InputError("the data have no validation split: give `val` in the data section")
        show_table(self.model.summary, f"validation of {self.measured}")

    def after_test(self) -> None:
        """Print the metrics and keep them."""
        if not self.trainer.is_global_zero:
            return
        show_table(self.model.summary, f"test of {self.measured}")
        if self.is_dry:
            return
        write_metrics(
            self.run.path / "metrics.json",
            self.model.summary,
            {
                "command": shlex.join(["fourfold", *self.arguments]),
                "configs": fingerprints(self.arguments),
                "checkpoint": self.measured,
            },
        )
        print(f"wrote {self.run.path / 'metrics.json'}", flush=True)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        kwargs["ckpt_path"] = str(self.start) if self.start else None
        if "verbose" in kwargs:
            kwargs["verbose"] = False  # our table is printed instead
        if "return_predictions" in kwargs:
            kwargs["return_predictions"] = False  # they go to a file
        return kwargs


def quiet() -> None:
    """Keep Lightning's advertisements and the advice that does not apply here from the screen."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    for noise in NOISE:
        warnings.filterwarnings("ignore", message=noise)


def main(argv: Sequence[str]) -> int:
    """Run `fit`, `validate`, `test` or `predict` with its arguments.

    Raises:
        InputError: Whatever is wrong with the options, the config, the data or the checkpoint.
    """
    quiet()
    command, rest = argv[0], list(argv[1:])
    rest = ["--help" if option == "--help-all" else option for option in rest]
    try:
        FourfoldCLI(command, rest)
    except torch.OutOfMemoryError as error:
        from fourfold.commands.plan import smaller

        raise InputError(f"the device has too little memory: {smaller(command, rest)}") from error
    except Exception as error:
        found = input_error(error)
        if found is None:
            raise
        raise locate_value(found, rest) from error
    return 0
