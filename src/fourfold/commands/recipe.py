"""A config as numbers: model, batch, steps and precision, without building what costs memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jsonargparse import ActionConfigFile
from lightning import Trainer

import fourfold.data  # noqa: F401  (so that classes can be named without their module)
from fourfold.commands.config_files import check_files, config_files
from fourfold.commands.errors import input_error
from fourfold.commands.options import add_options, check_numbers
from fourfold.commands.parser import Parser, known_options
from fourfold.commands.sections import check_sections
from fourfold.commands.warm_start import take_over
from fourfold.core.config import TransformerConfig
from fourfold.core.errors import InputError
from fourfold.data.datamodule import EpochData
from fourfold.models.cost import parameters
from fourfold.models.memory import PRECISIONS
from fourfold.tasks import Task
from fourfold.tasks.steps import steps_of

# Where a DataModule says how large a batch is: the key, and whether it counts padded tokens.
BATCH_KEYS = {"max_tokens": True, "batch_size": False}
LENGTH_KEYS = ("block_size", "max_len")  # where it says how many tokens a row has
# Lightning's other spellings of a precision.
SPELLINGS = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Recipe:
    """What a config says, with what it leaves to the data filled in.

    Args:
        task: The task, its model on the meta device.
        data: The DataModule.
        arguments: What it was made with.
        batch_key: The argument that bounds a batch.
        trainer: The Trainer's arguments.
    """

    task: Task
    data: EpochData
    arguments: dict[str, Any]
    batch_key: str
    trainer: dict[str, Any]

    @property
    def config(self) -> TransformerConfig:
        """The model's."""
        config: TransformerConfig = self.task.config
        return config

    @property
    def counts_tokens(self) -> bool:
        """Whether a batch is bounded by tokens rather than rows."""
        return BATCH_KEYS[self.batch_key]

    @property
    def batch(self) -> int:
        """Rows or tokens of a micro-batch, as configured."""
        return int(self.arguments[self.batch_key])

    @property
    def global_batch(self) -> int:
        """Rows or tokens of an optimizer step on one device, for which recipes are written."""
        return self.batch * self.accumulation

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return int(self.trainer["accumulate_grad_batches"])

    @property
    def nodes(self) -> int:
        """Machines that train."""
        return int(self.trainer["num_nodes"])

    @property
    def scored(self) -> float:
        """Share of the tokens that the loss looks at: of a masked LM, the hidden ones."""
        return float(self.arguments.get("masking", {}).get("rate", 1.0))

    @property
    def length(self) -> int | None:
        """Tokens of a full row of text; None where rows are sentences or images."""
        if self.counts_tokens:
            return None
        return next((int(self.arguments[k]) for k in LENGTH_KEYS if k in self.arguments), None)

    @cached_property
    def n_parameters(self) -> int:
        """Of the model."""
        return parameters(self.task.model).total

    @cached_property
    def n_trained(self) -> int:
        """Those of them that are not frozen for good."""
        learning = self.task.model.parameters()
        return sum(parameter.numel() for parameter in learning if parameter.requires_grad)

    @property
    def devices(self) -> int:
        """Processes that train; auto and -1, which the machine decides, count as one.

        Raises:
            InputError: `trainer.devices` is no number.
        """
        return (devices_of(self.trainer["devices"]) or 1) * self.nodes

    @property
    def precision(self) -> str:
        """Lightning's word for it, spelt in the usual way.

        Raises:
            InputError: One that no plan knows.
        """
        text = str(self.trainer["precision"] or "32-true")
        text = SPELLINGS.get(text, text)
        if text not in PRECISIONS:
            raise InputError(f"no plan for trainer.precision {text!r}: not {', '.join(PRECISIONS)}")
        return text

    @cached_property
    def steps(self) -> int | None:
        """Optimizer steps of the run; None where only data on the hub could tell."""
        trainer = self.trainer
        most, epochs = trainer["max_steps"], trainer["max_epochs"]
        if most > 0 and (epochs or -1) < 0:
            return int(most)
        if epochs == -1 or self.arguments.get("source") == "hub":
            return None
        try:
            batches = self.data.n_train_batches()
        except InputError:
            return None  # the data are elsewhere; everything else can still be said
        epochs = int(epochs or 1000)  # Lightning's own default
        limit = trainer["limit_train_batches"]
        return steps_of(batches, limit, self.accumulation, epochs, int(most))


def devices_of(given: Any) -> int | None:
    """How many devices `trainer.devices` names, as a number or one by one; None: whatever is there.

    Raises:
        InputError: It is no number.
    """
    text = str(given)
    listed = given if isinstance(given, list) else [part for part in text.split(",") if part]
    if len(listed) > 1 or isinstance(given, list):
        return len(listed)
    if text in ("auto", "-1"):
        return None
    if text.isdecimal() and int(text):
        return int(text)
    raise InputError(f"trainer.devices is {given!r}, which is no number of devices")


def make_parser(prog: str) -> Parser:
    """A parser of the keys that `fourfold fit` knows."""
    parser = Parser(prog=prog)
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file; several are merged.")
    parser.add_lightning_class_args(Task, "model", subclass_mode=True)
    parser.add_lightning_class_args(EpochData, "data", subclass_mode=True)
    parser.add_lightning_class_args(Trainer, "trainer")
    add_options(parser)
    # What the config.yaml of a run holds besides.
    parser.add_argument("--seed_everything", type=Any, default=0)
    for name in ("ckpt_path", "weights_only"):
        parser.add_argument(f"--{name}", type=Any, default=None)
    return parser


def parse(parser: Parser, arguments: Sequence[str]) -> Any:
    """Parse `arguments` as `fourfold fit` would.

    Raises:
        InputError: Whatever is wrong with them or with the files they name.
    """
    arguments = list(arguments)
    keys = {name.split(".")[0] for name in known_options(parser)}
    check_files(config_files(arguments), keys)
    config = parser.parse_args(arguments)
    check_sections(config)
    check_numbers(config["trainer"])
    take_over(config, arguments)
    return config


def read_recipe(parser: Parser, config: Any) -> Recipe:
    """The recipe of a parsed config.

    Raises:
        InputError: A value that no model or data can have; or the model takes its vocabulary or
            classes from data that are not here; or the batch is not bounded.
    """
    trainer = config.pop("trainer")  # never built: it would ask for GPUs that are elsewhere
    try:
        built = parser.instantiate(config)
        task, data = built["model"], built["data"]
        for field in task.from_data:
            if getattr(task.config, field) is None:
                task.config = replace(task.config, **{field: getattr(data, field)})
        with torch.device("meta"):
            task.configure_model()
    except Exception as error:
        raise input_error(error) or error from error
    arguments = config["data"]["init_args"].as_dict()
    keys = [key for key in BATCH_KEYS if arguments.get(key) is not None]
    if not keys:
        raise InputError(f"{type(data).__name__} has no bound on its batches to plan with")
    return Recipe(task, data, arguments, keys[0], trainer.as_dict())
