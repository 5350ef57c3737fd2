"""Default loggers of each command: metrics.csv, TensorBoard and Weights & Biases (W&B)."""

import json
import os
import uuid
from importlib.util import find_spec
from typing import Any

import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.atomic_files import write_atomically
from fourfold.commands.run_directory import RunDirectory
from fourfold.commands.train.default_callbacks import as_list
from fourfold.errors import InputError, reading
from fourfold.loggers.metrics_csv import MetricsCSVLogger
from fourfold.loggers.wandb_logger import WandbRunLogger


def make_loggers(command: str, run: RunDirectory, config: Any, config_text: str) -> list[Any]:
    """Return the default loggers of a command, followed by the loggers in `trainer.logger`.

    `fit` logs to metrics.csv and, if enabled, to TensorBoard and W&B; `test` to the W&B run of the
    training; `validate` to no default logger. With `trainer.logger: false`, the list is empty.

    Args:
        command: fit, validate or test.
        run: Directory of the run.
        config: All options of the command.
        config_text: The options as YAML, which `fit` logs to W&B.
    """
    given = config["trainer"]["logger"]
    if given is False:
        return []
    loggers: list[Any] = []
    if command == "fit":
        loggers.append(MetricsCSVLogger(run.path))
    if command == "fit" and config["tensorboard"] and find_spec("tensorboard"):
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(run.path, name="", version="tensorboard"))
    if command != "validate":
        loggers += _wandb_loggers(run, config, config_text if command == "fit" else None)
    return loggers if given is True else [*loggers, *as_list(given)]


def wandb_mode(value: str) -> str:
    """Return the mode of W&B ("off", "offline" or "online") for a value of `--wandb`.

    Raises:
        InputError: The package wandb is not installed.
    """
    if value == "off":
        return "off"
    if not find_spec("wandb"):
        raise InputError("needs the package wandb: pip install 'fourfold[wandb]'", option="--wandb")
    if value != "auto":
        return value
    from requests.utils import get_netrc_auth  # wandb depends on requests

    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(server) else "off"


def _wandb_loggers(run: RunDirectory, config: Any, config_text: str | None) -> list[Any]:
    """Return a list with the W&B logger of a run; empty if W&B is off.

    The id of the W&B run is in wandb.json, so that resuming and testing continue the same run.
    """
    mode = wandb_mode(config["wandb"])
    if mode == "off":
        return []
    file = run.path / "wandb.json"
    if file.is_file():
        with reading(file):
            identity = json.loads(file.read_text(encoding="utf-8"))
            identity = {**identity, "id": str(identity["id"])}
    else:
        identity = {
            "project": config["wandb_project"],
            "name": config["wandb_name"] or run.path.name,
            "id": uuid.uuid4().hex[:8],
            "group": config["wandb_group"] or os.environ.get("WANDB_RUN_GROUP"),
            "tags": config["wandb_tags"],
        }
        if getattr(rank_zero_only, "rank", 0) == 0:  # the other ranks have other ids
            run.path.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(identity, indent=1) + "\n")
    os.environ["WANDB_SILENT"] = "true"
    options = {**identity, "save_dir": run.path, "offline": mode == "offline", "resume": "allow"}
    config = yaml.safe_load(config_text) if config_text else None
    return [WandbRunLogger(config_text is None, config=config, **options)]
