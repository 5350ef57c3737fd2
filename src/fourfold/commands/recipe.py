"""Recipe: the parsed config of a training, with batch size, optimizer steps and precision.

The commands plan, diff and reproduce parse configs as `fourfold fit` does, but create no Trainer.
The model is on the meta device, so that its weights take no memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jsonargparse import ActionConfigFile
from lightning import LightningDataModule, Trainer

from fourfold.commands.config_files import config_files, locate
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.auto_precision import device_kind
from fourfold.commands.train.config_schema import check_keys
from fourfold.commands.train.init_from_config import fill_in_source
from fourfold.commands.train.options import add_options, check_numbers, count_devices
from fourfold.commands.train.parser import Parser, import_classes, parse_config
from fourfold.core.precision import resolve_precision
from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.errors import InputError
from fourfold.layers.base_model import on_meta
from fourfold.tasks import Task
from fourfold.training.total_steps import count_steps

# Arguments of DataModules that bound a batch: True if they count padded tokens, False for examples.
BATCH_KEYS = {"max_tokens": True, "batch_size": False}
# Arguments of DataModules that give the length of an example in tokens.
LENGTH_KEYS = ("block_size", "max_len")
# Lightning's default of `max_epochs` if neither epochs nor steps are given.
DEFAULT_MAX_EPOCHS = 1000


@dataclass(frozen=True)
class Recipe:
    """Parsed config of a training, with its task and DataModule.

    Args:
        task: The task, with its model on the meta device. Sizes that the config leaves out, such as
            vocab_size, are taken from the data.
        data: The DataModule.
        arguments: Arguments of the DataModule by name.
        batch_key: The argument that sets the size of a micro-batch, a key of `BATCH_KEYS`.
        trainer: Arguments of the Trainer by name.
    """

    task: Task
    data: ResumableDataModule
    arguments: dict[str, Any]
    batch_key: str
    trainer: dict[str, Any]

    @property
    def counts_tokens(self) -> bool:
        """True if the size of a batch is given in tokens (`max_tokens`), False if in examples."""
        return BATCH_KEYS[self.batch_key]

    @property
    def batch(self) -> int:
        """Size of a micro-batch in the config, in tokens if `counts_tokens`, else in examples."""
        return int(self.arguments[self.batch_key])

    @property
    def global_batch(self) -> int:
        """Size of the batch of an optimizer step with one device: `batch` times `accumulation`."""
        return self.batch * self.accumulation

    @property
    def accumulation(self) -> int:
        """Number of micro-batches that a device processes in an optimizer step."""
        return int(self.trainer["accumulate_grad_batches"])

    @property
    def length(self) -> int | None:
        """Maximum number of tokens of an example; None for images, and if `counts_tokens`."""
        if self.counts_tokens:
            return None
        return next((int(self.arguments[k]) for k in LENGTH_KEYS if k in self.arguments), None)

    @property
    def devices(self) -> int:
        """Number of devices on all nodes together; "auto" and -1 count as one device per node."""
        return (count_devices(self.trainer["devices"]) or 1) * int(self.trainer["num_nodes"])

    @property
    def precision(self) -> str:
        """Precision of the Trainer on this machine as a key of `PRECISIONS`."""
        device = device_kind(self.trainer["accelerator"])
        return resolve_precision(self.trainer["precision"], device)

    @cached_property
    def steps(self) -> int | None:
        """Number of optimizer steps of the whole training, or None if it is unknown.

        It is unknown if neither steps nor epochs are limited, or if it depends on data that are on
        another machine or on the Hugging Face Hub.
        """
        max_steps = self.trainer["max_steps"]
        max_epochs = self.trainer["max_epochs"]
        if max_steps > 0 and (max_epochs or -1) < 0:
            return int(max_steps)
        if max_epochs == -1 or self.arguments.get("source") == "hub":
            return None
        try:
            batches = self.data.n_train_batches()
        except InputError:  # the files are on another machine
            return None
        epochs = int(max_epochs or DEFAULT_MAX_EPOCHS)
        limit = self.trainer["limit_train_batches"]
        return count_steps(batches, limit, self.accumulation, epochs, int(max_steps))


def make_parser(prog: str) -> Parser:
    """Return a parser of all options of `fourfold fit`, for a program called `prog`."""
    import_classes()
    parser = Parser(prog=prog)
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file; several are merged.")
    parser.add_lightning_class_args(Task, "model", subclass_mode=True)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(Trainer, "trainer")
    add_options(parser)
    # Further keys of the config.yaml of a run directory.
    parser.add_argument("--seed_everything", type=Any, default=0)
    for name in ("ckpt_path", "weights_only"):
        parser.add_argument(f"--{name}", type=Any, default=None)
    return parser


def parse(parser: Parser, arguments: Sequence[str]) -> Any:
    """Parse options of `fourfold fit`, and those that were added to the parser; return the config.

    Raises:
        InputError: An argument or a config file is invalid. For a value in a config file, the error
            names the file and the line.
    """
    arguments = list(arguments)
    check_keys([word for file in config_files(arguments) for word in ("--config", str(file))])
    try:
        config, given = parse_config(parser, arguments)
        check_numbers(config)
    except InputError as error:
        raise locate(error, arguments) from error
    run = RunDirectory(config["run_dir"]) if config["run_dir"] else None
    fill_in_source(config, given, run if run and run.config.is_file() else None)
    return config


def read_recipe(parser: Parser, config: Any) -> Recipe:
    """Build the task and the DataModule of a config of `parse`, and return the recipe.

    The section `trainer` of the config is removed in place.

    Raises:
        InputError: A value is invalid for the model or the data, a size depends on data that are
            missing, or neither `max_tokens` nor `batch_size` of the DataModule is set.
    """
    trainer = config.pop("trainer")  # not instantiated: it would require the devices it names
    built = parser.instantiate(config)
    task = built["model"]
    data = built["data"]
    for field in task.inferred_from_data:
        if getattr(task.config, field) is None:
            task.config = replace(task.config, **{field: getattr(data, field)})
    with on_meta():
        task.configure_model()
    arguments = config["data"]["init_args"].as_dict()
    keys = [key for key in BATCH_KEYS if arguments.get(key) is not None]
    if not keys:
        message = f"needs one of {', '.join(BATCH_KEYS)}, got {type(data).__name__}"
        raise InputError(message, option="data")
    return Recipe(task, data, arguments, keys[0], trainer.as_dict())
