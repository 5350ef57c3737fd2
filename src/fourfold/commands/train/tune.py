"""`fourfold tune`: Lightning's learning-rate range test and search for the largest batch size."""

from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.tuner import Tuner

from fourfold.atomic_files import write_atomically
from fourfold.commands.compare_runs import CURVE_HEIGHT, draw
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.lightning_cli import FourfoldCLI
from fourfold.commands.train.parser import trainer_errors
from fourfold.errors import InputError
from fourfold.training.task import Task

# Arguments of the Tuner's methods that are no options.
SKIPPED = {"model", "datamodule", "method", "update_attr", "attr_name"}
SKIPPED |= {"train_dataloaders", "val_dataloaders", "dataloaders"}


class TuneCLI(FourfoldCLI):
    """FourfoldCLI that calls a method of Lightning's Tuner in place of training.

    The result is written to RUN/tune/METHOD.yaml, a config for `fourfold fit`. Weights are new, or
    those of `model.init_from`; a training in the run directory is neither read nor changed.
    """

    method = "lr_find"

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Add the arguments of the Tuner's method as `--tune.NAME`."""
        super().add_arguments_to_parser(parser)
        parser.add_method_arguments(Tuner, self.method, "tune", skip=SKIPPED)

    def before_instantiate_classes(self) -> None:
        """Choose RUN/tune as directory, where RUN is the run directory of `fourfold fit`."""
        self.options["run_dir"] = str(RunDirectory.from_config(self.options).path / "tune")
        super().before_instantiate_classes()

    def _find_checkpoint(self, config: Any) -> Path | None:
        return None

    def fit(self, model: Task, **options: Any) -> None:
        """Call the method of the Tuner, print its result and write it as a config."""
        arguments = self._built()["tune"].as_dict()
        with trainer_errors("lightning.", option="tune:"):
            method = getattr(Tuner(self.trainer), self.method)
            found = method(model, datamodule=self.datamodule, **arguments)
        section, keys, value = "data", [arguments.get("batch_arg_name")], found
        file = self.run_directory.path / f"{self.method}.yaml"
        if self.method == "lr_find":
            section, keys, value = "model", ["optimizer", "lr"], found.suggestion()
            png = file.with_suffix(".png")
            draw([""], CURVE_HEIGHT, lambda axis, _: found.plot(suggest=True, ax=axis), png)
        if value is None:
            raise InputError("must be greater: too few losses are finite", option="tune")
        content: Any = value
        for key in (*reversed(keys), "init_args", section):
            content = {key: content}
        write_atomically(file, yaml.safe_dump(content))
        print(f"{section}.{'.'.join(keys)}: {value:g}; wrote {file}", flush=True)
