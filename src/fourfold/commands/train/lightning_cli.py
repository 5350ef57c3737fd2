"""`fourfold fit|validate|test|predict`: LightningCLI with run directories and exact resume."""

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from lightning import LightningDataModule, Trainer
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningCLI, LRSchedulerTypeTuple
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.multiprocessing import ProcessExitedException
from torch.optim import Optimizer

from fourfold.atomic_files import disk_error
from fourfold.callbacks.checkpointing.atomic_io import AtomicCheckpointIO
from fourfold.callbacks.checkpointing.preemption import EXIT_CODE, INTERRUPTED
from fourfold.commands.config_files import expand_arguments, fingerprints, locate
from fourfold.commands.metrics_report import show_table, write_metrics
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.auto_precision import set_matmul_precision, set_precision
from fourfold.commands.train.default_callbacks import as_list, make_callbacks, slurm_environment
from fourfold.commands.train.default_loggers import make_loggers
from fourfold.commands.train.init_from_config import fill_in_source
from fourfold.commands.train.options import add_options, check_options
from fourfold.commands.train.parser import Parser, import_classes, parse_config, trainer_errors
from fourfold.commands.train.torch_optimizer import replace_optimizer
from fourfold.core.validation import check_range
from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.errors import DiskError, InputError
from fourfold.training.loading import read_for_trainer
from fourfold.training.task import Task

TRAINER_DEFAULTS = {
    # The batch of a recipe is that of one device; several devices must be requested.
    "devices": 1,
    # ResumableDataModule distributes the examples over ranks itself.
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
# Modules in which Lightning rejects Trainer arguments that do not fit the data or checkpoint, such
# as a `val_check_interval` longer than an epoch, or a `max_epochs` that is already exceeded.
START_CHECKS = (
    "lightning.pytorch.loops.fit_loop",
    "lightning.pytorch.trainer.connectors.checkpoint_connector",
)


class FourfoldCLI(LightningCLI):
    """LightningCLI with run directories, exact resume and the defaults of fourfold.

    Everything else is as in LightningCLI: subcommands, `--print_config`, callbacks and loggers in
    YAML, linked arguments, and hooks such as `before_fit`. A subclass that overrides a method calls
    the method of this class, too. The hyper-parameters of a checkpoint do not change the config.

    Args:
        model_class: Task that is trained, or base class of the tasks that `--model` accepts.
        datamodule_class: DataModule, or base class of the DataModules that `--data` accepts.
        **options: Further arguments of LightningCLI, such as `args` and `trainer_defaults`.
    """

    def __init__(
        self,
        model_class: type[Any] = Task,
        datamodule_class: type[Any] = LightningDataModule,
        **options: Any,
    ) -> None:
        self._classes = [  # options that name a task and a DataModule of the constructor
            f"--{name}={cls.__module__}.{cls.__qualname__}"
            for name, cls in (("model", model_class), ("data", datamodule_class))
            if cls not in (Task, LightningDataModule)
        ]
        self._parsers: list[Any] = []  # of the subcommands
        ours = {
            "save_config_callback": None,
            "seed_everything_default": 0,
            "parser_class": Parser,
            "subclass_mode_model": True,
            "subclass_mode_data": True,
            "auto_configure_optimizers": False,
            **options,
            "trainer_defaults": {**TRAINER_DEFAULTS, **options.get("trainer_defaults", {})},
        }
        super().__init__(model_class, datamodule_class, **ours)

    @classmethod
    def run(cls, arguments: list[str], classes: Iterable[str] | None = None) -> int:
        """Run a command line and return its exit code.

        Args:
            arguments: The command (fit, validate, test or predict) and its options.
            classes: Names of the tasks and DataModules that are used; None means all of them.

        Raises:
            InputError: An option, a config, the data or the checkpoint is invalid.
        """
        limit_warnings()
        import_classes(None if "--help" in arguments else classes)
        try:
            cls(args=arguments)
        except ProcessExitedException as stop:  # a rank of the strategy ddp_fork or ddp_spawn
            if stop.exit_code not in (EXIT_CODE, INTERRUPTED):
                raise
            return int(stop.exit_code)
        except InputError as error:
            raise locate(error, arguments) from error
        return 0

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Add the fields of `RunOptions`, and the optimizers and schedulers of torch."""
        self._parsers.append(parser)
        add_options(parser)
        parser.add_optimizer_args((Optimizer,))
        parser.add_lr_scheduler_args(LRSchedulerTypeTuple)

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse the arguments, and set `config` and the attributes of the chosen command.

        `options` is the part of `config` for the command, and `given` holds only the values that
        the user gave.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        commands = list(self.subcommands())
        self.command = arguments[0] if arguments and arguments[0] in commands else "fit"
        first = arguments[:1] if self.command in arguments[:1] else []
        words = expand_arguments(arguments[len(first) :], evaluates=self.command != "fit")
        self.arguments = words
        self.config, given = parse_config(parser, [*first, *self._classes, *words])
        command = self.config.get("subcommand")
        self.options, self.given = self.config.get(command, self.config), given.get(command, given)
        self.command_parser = self._parsers[commands.index(self.command) if command else 0]
        seed = int(self.options["seed_everything"] or 0)
        check_range("seed_everything", seed, minimum=0, maximum=2**32 - 1)
        # Otherwise Lightning would replace the model's options by those of the checkpoint.
        self._ckpt_path = self.options.get("ckpt_path")
        if self._ckpt_path:  # with `run=False`, there is no such option
            self.options["ckpt_path"] = None

    def before_instantiate_classes(self) -> None:
        """Check the options, and choose the run directory, the checkpoint and the precision.

        Two attributes are set: `run_directory`, a `RunDirectory`, and `checkpoint`, the path of the
        checkpoint to load, or None.
        """
        config = self.options
        check_options(config)
        self.run_directory = RunDirectory.from_config(config)
        config["run_dir"] = str(self.run_directory.path)
        arguments = config["data"].get("init_args", {})
        # The seed of the data is `seed_everything` unless the config gives another seed.
        self.shares_seed = "seed" in arguments and "data.init_args.seed" not in self.given
        if self.shares_seed:
            arguments["seed"] = int(config["seed_everything"])
        self.is_dry_run = bool(config["trainer"]["fast_dev_run"])  # writes nothing
        if self.command == "fit" and not self.is_dry_run:
            self.run_directory.set_aside_damaged()
        uses_directory = self.command == "fit" or self.run_directory.config.is_file()
        directory = self.run_directory if uses_directory and not self.is_dry_run else None
        try:
            fill_in_source(config, self.given, directory)
        except OSError:  # the disk is full
            self.run_directory.cleanup_if_empty()
            raise
        self.checkpoint = self._find_checkpoint(config)
        trains = self.command == "fit"
        origin = RunDirectory(self.checkpoint.absolute().parents[1]) if self.checkpoint else None
        recorded = origin.recorded_config() if origin and trains else {}
        set_precision(config, self.arguments, recorded, trains=trains)
        set_matmul_precision(config, recorded)
        self.first_step = 0  # of this process
        if recorded:
            _check_unchanged(yaml.safe_load(self.dump()), recorded)

    def _find_checkpoint(self, config: Any) -> Path | None:
        """Return the path of the checkpoint to load.

        The result is None if the weights are new or come from `model.init_from`.
        """
        directory, ckpt_path = self.run_directory, self._ckpt_path
        if self.command == "fit" and self.is_dry_run and ckpt_path is None:
            return None
        if self.command == "fit":
            return directory.checkpoint_to_resume(config["resume"], ckpt_path)
        from fourfold.checkpoints.word_vectors import is_vector_file

        source = config["model"].get("init_args.init_from")
        has_weights = source and not (isinstance(source, str) and is_vector_file(source))
        if has_weights and not ckpt_path and not directory.checkpoints.exists():
            return None
        return directory.find_checkpoint(ckpt_path)

    def instantiate_classes(self) -> None:
        """Build model, data and Trainer; if `fit` fails here, remove a new run directory."""
        try:
            super().instantiate_classes()
            built = self._built()
            optimizers = built.get("optimizer"), built.get("lr_scheduler")
            replace_optimizer(self.model, *optimizers, self.configure_optimizers)
        except Exception:
            if self.command == "fit":
                self.run_directory.cleanup_if_empty()  # init_from may have written a tokenizer
            raise
        self.model.allowed_classes = tuple(self.options["allow_class"])
        self.model.resumes = self.checkpoint is not None

    def _built(self) -> Any:
        """Return the options of the command with the objects that they describe."""
        return self.config_init.get(self.config.get("subcommand"), self.config_init)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the Trainer with default callbacks and plugins in addition to the user's.

        Args:
            **kwargs: Arguments of the Trainer that replace those of the config, except callbacks,
                plugins, logger and default_root_dir, which are always those of the config.

        Raises:
            InputError: Lightning rejects an argument of the Trainer.
        """
        config = self._built()
        trainer = config["trainer"]
        plugins = as_list(trainer["plugins"])
        checkpoint_io = AtomicCheckpointIO(self._read_checkpoint)
        kwargs["plugins"] = [*plugins, checkpoint_io, *slurm_environment(plugins)]
        kwargs["logger"] = False  # loggers are made in `fit`, once the data are known to exist
        callbacks = make_callbacks(self.command, self.run_directory, config, self.dump())
        kwargs["callbacks"] = [*callbacks, *as_list(trainer["callbacks"])]
        kwargs["default_root_dir"] = str(self.run_directory.path)
        kwargs["enable_progress_bar"] = any(isinstance(c, ProgressBar) for c in kwargs["callbacks"])
        if not isinstance(config["data"], ResumableDataModule):
            kwargs["use_distributed_sampler"] = True
        with trainer_errors("lightning."):
            return super().instantiate_trainer(**kwargs)

    def _read_checkpoint(self, path: str | Path, *, meta: bool = False) -> dict[str, Any]:
        content = read_for_trainer(path, meta=meta)
        self.first_step = int(content.get("global_step", 0))
        is_resumable = "optimizer_states" in content and "loops" in content
        if self.command == "fit" and "state_dict" in content and not is_resumable:
            message = "the checkpoint contains weights, but no state of a training to resume;"
            raise InputError(f"{message} start from its weights with --model.init_from", file=path)
        return content

    def dump(self) -> str:
        """Return the options of the command as YAML, in the format of a config file."""
        config = self.options.clone()
        config.pop("config", None)
        if self.shares_seed:  # so that another `seed_everything` changes the seed of the data, too
            del config["data"]["init_args"]["seed"]
        return self.command_parser.dump(config, skip_unset=False, skip_validation=True)

    def fit(self, model: Task, **options: Any) -> None:
        """Run the command. After `validate` and `test`, print the metrics.

        If `fit` fails with an InputError before the first checkpoint, a run directory that it
        created is removed.
        """
        options["ckpt_path"] = str(self.checkpoint) if self.checkpoint else None
        # `_report` prints the metrics, and a callback writes predictions to a file.
        options |= dict.fromkeys(options.keys() & {"verbose", "return_predictions"}, False)
        try:
            with ExitStack() as resources, trainer_errors(*START_CHECKS):
                self._prepare(resources)
                getattr(self.trainer, self.command)(model, **options)
        except (InputError, OSError) as error:
            problem = disk_error(error) if isinstance(error, OSError) else None
            if self.command == "fit" and problem and self.trainer.global_step > self.first_step:
                raise self._stopped(problem) from error
            if self.command == "fit" and (problem or isinstance(error, InputError)):
                self.run_directory.cleanup_if_empty()
            raise
        if self.command in ("validate", "test") and self.trainer.is_global_zero:
            self._report()

    validate = test = predict = fit

    def _stopped(self, problem: DiskError) -> DiskError:
        """Return the error of a full or failing disk, whose message names a checkpoint to resume.

        The exit code of the error is 75, that of a training that can be resumed.
        """
        newest = next(self.run_directory.resume_candidates(), None)
        hint = f"run the same command again to resume from {newest}"
        stopped = DiskError(f"{problem}; {hint if newest else 'no checkpoint is complete'}")
        stopped.exit_code = EXIT_CODE
        return stopped

    def _prepare(self, resources: ExitStack) -> None:
        """Create the loggers. For `fit`, also read the data and lock the run directory.

        Closing the stack releases the lock.
        """
        is_first = getattr(rank_zero_only, "rank", 0) == 0
        if self.command == "fit" and is_first and not self.is_dry_run:
            resources.enter_context(self.run_directory.lock())  # before a file is written in it
        if self.command == "fit" and self.trainer.world_size == 1:
            self.datamodule.setup("fit")  # several ranks set up together to share a tokenizer
        if self.command != "predict" and not self.is_dry_run:
            self.trainer.loggers = make_loggers(
                self.command, self.run_directory, self._built(), self.dump()
            )

    def _report(self) -> None:
        """Print the metrics of a validation or test; a test also writes metrics.json."""
        metrics = self.model.summary
        weights = str(self.checkpoint or self.model.init_from)
        if self.command == "validate" and not metrics:
            raise InputError("must be given: the data have no validation split", option="data.val")
        kind = "validation" if self.command == "validate" else "test"
        show_table(metrics, f"{kind} of {weights}")
        if self.command == "test" and not self.is_dry_run:
            file = self.run_directory.path / "metrics.json"
            origin = {
                "command": shlex.join(["fourfold", self.command, *self.arguments]),
                "configs": fingerprints(self.arguments),
                "checkpoint": weights,
            }
            write_metrics(file, metrics, origin)
            print(f"wrote {file}", flush=True)


def _check_unchanged(config: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Raise InputError if options differ that a resumed training cannot change."""

    # A checkpoint names neither the class of an optimizer of torch nor that of its scheduler.
    def fixed(content: dict[str, Any]) -> dict[str, Any]:
        source = content.get("model", {}).get("init_args", {}).get("init_from")
        source = os.path.realpath(source) if isinstance(source, str) else source
        names = ("optimizer", "lr_scheduler")
        return {"model.init_from": source, **{name: content.get(name) for name in names}}

    current = fixed(config)
    for name, value in fixed(recorded).items():
        if current[name] != value:
            message = f"must be {value}, with which this training started, got {current[name]}"
            raise InputError(f"{message}; another value needs another --run_dir", option=name)


def limit_warnings() -> None:
    """Set the log level of Lightning to WARNING, and ignore some warnings in the whole process.

    The ignored warnings are irrelevant for users of fourfold. They are Lightning's
    `PossibleUserWarning` and all warnings with a message that matches `IGNORED_WARNINGS`.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # prints its report
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message="|".join(IGNORED_WARNINGS))
