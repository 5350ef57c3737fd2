"""`fourfold fit|validate|test|predict`: LightningCLI with run directories and one-line errors.

Differences from LightningCLI: the hyper-parameters of a checkpoint never overwrite the config, each
run has one directory from which it is resumed, and options cannot be abbreviated.
"""

import logging
import shlex
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, Trainer
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.callbacks.checkpointing.atomic_io import AtomicCheckpointIO
from fourfold.commands.train.config_files import (
    check_files,
    config_files,
    expand_arguments,
    fingerprints,
    is_given,
    locate,
)
from fourfold.commands.train.default_callbacks import as_list, make_callbacks, slurm_environment
from fourfold.commands.train.default_loggers import make_loggers, make_test_loggers, user_loggers
from fourfold.commands.train.init_from_config import fill_in_source, has_init_from
from fourfold.commands.train.metrics_report import show_table, write_metrics
from fourfold.commands.train.options import (
    add_options,
    check_options,
    check_resumable,
    check_seed,
    check_validation_interval,
)
from fourfold.commands.train.parser import (
    Parser,
    check_sections,
    constructor_error,
    import_all_classes,
    known_options,
)
from fourfold.commands.train.run_directory import RunDirectory
from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.errors import InputError
from fourfold.lightning_internals import LightningCLIInternals
from fourfold.tasks import Task
from fourfold.tasks.loading import read_for_trainer

TRAINER_DEFAULTS = {
    # The batch of a recipe is that of one device; several devices must be requested.
    "devices": 1,
    # ResumableDataModule distributes rows over ranks itself.
    "use_distributed_sampler": False,
    # One validation batch before training finds mistakes early.
    "num_sanity_val_steps": 1,
    "enable_model_summary": False,
}

# Warnings of Lightning and torch that do not apply to this package.
IGNORED_WARNINGS = (
    ".*WeightAveraging callback with a model that overrides.*",
    ".*callbacks used to create the checkpoint need to be provided.*",
    ".*Total length of `list` across ranks is zero.*",  # raised without a validation split
    ".*`isinstance.treespec, LeafSpec.*",
)
OUT_OF_MEMORY = (
    "The device has too little memory: use smaller batches and raise"
    " --trainer.accumulate_grad_batches; `fourfold plan --memory GIB` with the same options prints"
    " values that keep the global batch."
)
RESTARTED_EPOCH = (
    "{} is not a ResumableDataModule: a resumed training restarts the epoch that was interrupted"
)


class FourfoldCLI(LightningCLIInternals, LightningCLI):
    """Parse a command and build model, data and Trainer; `run` executes it.

    Args:
        command: fit, validate, test or predict.
        options: Arguments after the command.
    """

    run_directory: RunDirectory
    checkpoint: Path | None  # the checkpoint that the command starts from
    shares_seed: bool  # the data use `seed_everything`
    is_dry_run: bool  # fast_dev_run, which writes nothing
    resources: ExitStack  # released when the command ends

    def __init__(self, command: str, options: list[str]) -> None:
        import_all_classes()
        self.command = command
        self.arguments = [command, *options]
        super().__init__(
            Task,
            LightningDataModule,
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

    def run_subcommand(self, subcommand: str) -> None:
        """Do nothing: LightningCLI would run the command inside its constructor."""

    def run(self) -> None:
        """Run the command; remove the directory of a training that invalid input stopped early."""
        try:
            with ExitStack() as self.resources:
                super().run_subcommand(self.command)
        except InputError:
            if self.command == "fit":
                self.run_directory.cleanup_if_empty()
            raise

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the current subcommand alone; each takes half a second to prepare."""
        return {self.command: super().subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Add the options besides model, data and trainer."""
        add_options(parser)

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Check the config files and parse the arguments."""
        keys = {name.split(".")[0] for name in known_options(self.subcommand_parser(self.command))}
        check_files(config_files(self.arguments), keys)
        self.config = parser.parse_args(self.arguments)
        check_seed("seed_everything", self.config[self.command]["seed_everything"])

    def before_instantiate_classes(self) -> None:
        """Determine the run directory and the checkpoint before anything is built."""
        config = self.config[self.command]
        check_sections(config)
        check_options(config)
        torch.set_float32_matmul_precision(config["float32_matmul_precision"])
        self.run_directory = RunDirectory.from_config(config)
        config["run_dir"] = str(self.run_directory.path)
        self._share_seed(config)
        self.is_dry_run = bool(config["trainer"]["fast_dev_run"])
        uses_directory = self.command == "fit" or self.run_directory.config.is_file()
        directory = self.run_directory if uses_directory and not self.is_dry_run else None
        fill_in_source(config, self.arguments, directory)
        self.checkpoint = self._find_checkpoint(config)

    def _find_checkpoint(self, config: Any) -> Path | None:
        """Return the checkpoint to start from; None for new or imported weights."""
        ckpt_path = config.get("ckpt_path")
        directory = self.run_directory
        if self.command == "fit":
            if self.is_dry_run and ckpt_path is None:
                return None
            checkpoint = directory.checkpoint_to_resume(config["resume"], ckpt_path)
            if checkpoint and checkpoint.parent == directory.checkpoints:
                directory.check_same_model(self.config_as_dict()["model"])
            return checkpoint
        if ckpt_path is None and not directory.checkpoints.exists() and has_init_from(config):
            return None
        return directory.find_checkpoint(ckpt_path)

    def _share_seed(self, config: Any) -> None:
        """Set the seed of the data to `seed_everything` unless the user sets `data.seed`."""
        arguments = config["data"].get("init_args", {})
        self.shares_seed = "seed" in arguments and not is_given("data.seed", self.arguments)
        if self.shares_seed:
            arguments["seed"] = int(config["seed_everything"])

    def instantiate_classes(self) -> None:
        """Build model, data and Trainer; an exception of a constructor keeps its traceback."""
        try:
            super().instantiate_classes()
        except Exception as error:
            original = constructor_error(error)
        else:
            self.model.allowed_classes = tuple(self.config_init[self.command]["allow_class"])
            self.model.resumes = self.checkpoint is not None
            return
        if self.command == "fit":
            self.run_directory.cleanup_if_empty()  # init_from may have written a tokenizer
        raise original

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the Trainer with the default callbacks and plugins besides the user's."""
        config = self.config_init[self.command]
        trainer = config["trainer"]
        plugins = as_list(trainer["plugins"])
        checkpoint_io = AtomicCheckpointIO(self._read_checkpoint)
        kwargs["plugins"] = [*plugins, checkpoint_io, *slurm_environment(plugins)]
        kwargs["logger"] = False  # loggers are made in `before_*`, once the data are known to exist
        callbacks = make_callbacks(self.command, self.run_directory, config, self.dump())
        kwargs["callbacks"] = [*callbacks, *as_list(trainer["callbacks"])]
        kwargs["default_root_dir"] = str(self.run_directory.path)
        if not isinstance(config["data"], ResumableDataModule):
            kwargs["use_distributed_sampler"] = True
        return super().instantiate_trainer(**kwargs)

    def _read_checkpoint(self, path: str | Path) -> dict[str, Any]:
        content = read_for_trainer(path)
        if self.command == "fit" and "state_dict" in content:
            check_resumable(content, path, self.trainer.max_epochs)
        return content

    def dump(self) -> str:
        """Return the whole config as YAML that `--config` accepts."""
        config = self.config[self.command].clone()
        config.pop("config", None)
        config["ckpt_path"] = None
        if self.shares_seed:  # so that another `seed_everything` changes the seed of the data, too
            del config["data"]["init_args"]["seed"]
        parser = self.subcommand_parser(self.command)
        text: str = parser.dump(config, skip_unset=False, skip_validation=True)
        return text

    def before_fit(self) -> None:
        """Read the data, lock the run directory and create the loggers."""
        if self.trainer.world_size == 1:  # several ranks set up together to share a tokenizer
            self.datamodule.setup("fit")
            check_validation_interval(self.trainer, self.datamodule)
        if not isinstance(self.datamodule, ResumableDataModule) and self.trainer.is_global_zero:
            print(RESTARTED_EPOCH.format(type(self.datamodule).__name__), flush=True)
        if not self.is_dry_run:
            if getattr(rank_zero_only, "rank", 0) == 0:
                self.resources.enter_context(self.run_directory.lock())
            config = self.config_init[self.command]
            self.trainer.loggers = make_loggers(self.run_directory, config, self.dump())

    def before_validate(self) -> None:
        """Use the user's loggers alone."""
        if not self.is_dry_run:
            self.trainer.loggers = user_loggers(self.config_init["validate"])

    def before_test(self) -> None:
        """Use the user's loggers and, with `--wandb`, the W&B run of the training."""
        if not self.is_dry_run:
            self.trainer.loggers = make_test_loggers(self.run_directory, self.config_init["test"])

    @property
    def evaluated_weights(self) -> str:
        """Path of the checkpoint or of the source that an evaluation uses."""
        return str(self.checkpoint or self.model.init_from)

    def after_validate(self) -> None:
        """Print the metrics."""
        if not self.trainer.is_global_zero:
            return
        if not self.model.summary:
            raise InputError("must be given: the data have no validation split", option="data.val")
        show_table(self.model.summary, f"validation of {self.evaluated_weights}")

    def after_test(self) -> None:
        """Print the metrics and write metrics.json."""
        if not self.trainer.is_global_zero:
            return
        show_table(self.model.summary, f"test of {self.evaluated_weights}")
        if self.is_dry_run:
            return
        file = self.run_directory.path / "metrics.json"
        origin = {
            "command": shlex.join(["fourfold", *self.arguments]),
            "configs": fingerprints(self.arguments),
            "checkpoint": self.evaluated_weights,
        }
        write_metrics(file, self.model.summary, origin)
        print(f"wrote {file}", flush=True)

    def subcommand_arguments(self, subcommand: str) -> dict[str, Any]:
        """Return the arguments of `Trainer.fit`, `validate`, `test` or `predict`."""
        kwargs = super().subcommand_arguments(subcommand)
        kwargs["ckpt_path"] = str(self.checkpoint) if self.checkpoint else None
        if "verbose" in kwargs:
            kwargs["verbose"] = False  # `after_*` prints the metrics
        if "return_predictions" in kwargs:
            kwargs["return_predictions"] = False  # a callback writes them to a file
        return kwargs


def limit_warnings() -> None:
    """Set the log level of Lightning to WARNING and ignore warnings that do not apply here.

    This changes the state of the process, so it is called at the start of a command only.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    for message in IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def main(argv: Sequence[str]) -> int:
    """Run `fit`, `validate`, `test` or `predict` with its arguments.

    Raises:
        InputError: An option, a config, the data or the checkpoint is invalid.
    """
    limit_warnings()
    command = argv[0]
    options = ["--help" if option == "--help-all" else option for option in argv[1:]]
    options = expand_arguments(options, evaluates=command != "fit")
    try:
        FourfoldCLI(command, options).run()
    except torch.OutOfMemoryError as error:
        error.add_note(OUT_OF_MEMORY)
        raise
    except InputError as error:
        raise locate(error, options) from error
    return 0
