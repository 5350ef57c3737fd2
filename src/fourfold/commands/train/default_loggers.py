"""Where metrics go: metrics.csv always and first, TensorBoard and Weights & Biases beside it."""

import json
import os
import uuid
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from typing import Any
from urllib.parse import urlsplit

import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.callbacks.metrics_csv import MetricsCSV
from fourfold.callbacks.wandb_run import WandbRun
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.errors import InputError
from fourfold.files import write_whole


def make_loggers(run: RunDirectory, config: Any, text: str) -> list[Any]:
    """Loggers of a training; `trainer.logger: false` turns all off, others are added to ours.

    Args:
        run: Where files go.
        config: All options of the command.
        text: The same as YAML, as config.yaml has it.
    """
    if config["trainer"]["logger"] is False:
        return []
    loggers: list[Any] = [MetricsCSV(run.path)]
    if config["tensorboard"] and find_spec("tensorboard"):
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(run.path, name="", version="tensorboard"))
    mode = wandb_mode(config["wandb"])
    if mode != "off":
        loggers.append(wandb_run(mode, run, config, config=yaml.safe_load(text)))
    return loggers + users_loggers(config)


def loggers_of_a_test(run: RunDirectory, config: Any) -> list[Any]:
    """The user's, and the W&B run of the training, whose summary gets what is measured."""
    if config["trainer"]["logger"] is False:
        return []
    mode = wandb_mode(config["wandb"])
    ours = [] if mode == "off" else [wandb_run(mode, run, config, testing=True)]
    return [*ours, *users_loggers(config)]


def users_loggers(config: Any) -> list[Any]:
    """What `trainer.logger` names."""
    given = config["trainer"]["logger"]
    return [] if given in (None, True, False) else given if isinstance(given, list) else [given]


def wandb_mode(wanted: str) -> str:
    """off, offline or online, for what the user wanted.

    Raises:
        InputError: wandb is not installed, or there is no key to go online with.
    """
    if wanted == "off":
        return "off"
    if not find_spec("wandb"):
        raise InputError("--wandb needs a package that is missing: pip install -e '.[wandb]'")
    if wanted == "auto":
        return "online" if _has_key() else "off"
    if wanted == "online" and not _has_key():
        raise InputError(
            "--wandb online needs a key: run `wandb login`, or set WANDB_API_KEY, or use"
            " --wandb offline"
        )
    return wanted


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
        return netrc().authenticators(server or "") is not None
    except (OSError, NetrcParseError):
        return False


def wandb_run(mode: str, run: RunDirectory, wanted: Any, **options: Any) -> WandbRun:
    """The W&B logger of a run, which keeps its identity when the run is resumed or tested."""
    file = run.path / "wandb.json"
    if file.is_file():
        identity = json.loads(file.read_text(encoding="utf-8"))
    else:
        identity = {
            "project": wanted["wandb_project"],
            "name": wanted["wandb_name"] or run.path.name,
            "id": uuid.uuid4().hex[:8],
            "group": wanted["wandb_group"] or os.environ.get("WANDB_RUN_GROUP"),
            "tags": wanted["wandb_tags"],
        }
        if getattr(rank_zero_only, "rank", 0) == 0:  # the others would write ids of their own
            run.path.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(identity, indent=1) + "\n")
    os.environ["WANDB_SILENT"] = "true"
    offline = mode == "offline"
    return WandbRun(save_dir=run.path, offline=offline, resume="allow", **identity, **options)
