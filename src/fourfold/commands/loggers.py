"""Where metrics go: metrics.csv always and first, TensorBoard and Weights & Biases beside it."""

import json
import os
import uuid
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from typing import Any

from fourfold.callbacks.metrics_csv import MetricsCSV
from fourfold.commands.run_directory import RunDirectory
from fourfold.core.errors import InputError


def make_loggers(run: RunDirectory, config: Any) -> list[Any]:
    """Loggers of a training; `trainer.logger: false` turns all off, others are added to ours."""
    given = config["trainer"]["logger"]
    if given is False:
        return []
    theirs = [] if given in (None, True) else given if isinstance(given, list) else [given]
    loggers: list[Any] = [MetricsCSV(run.path)]
    if config["tensorboard"] and find_spec("tensorboard"):
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(run.path, name="", version="tensorboard"))
    mode = wandb_mode(config["wandb"])
    if mode != "off":
        loggers.append(wandb_logger(mode, run, config))
    return loggers + theirs


def wandb_mode(wanted: str) -> str:
    """off, offline or online, for what the user wanted.

    Raises:
        InputError: wandb is not installed, or there is no key to go online with.
    """
    if wanted == "off":
        return "off"
    if not find_spec("wandb"):
        raise InputError("--wandb needs a package that is missing: pip install 'fourfold[wandb]'")
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
        return netrc().authenticators("api.wandb.ai") is not None
    except (OSError, NetrcParseError):
        return False


def wandb_logger(mode: str, run: RunDirectory, config: Any) -> Any:
    """The W&B logger of a run, which keeps its identity when the run is resumed."""
    from lightning.pytorch.loggers import WandbLogger

    file = run.path / "wandb.json"
    if file.is_file():
        identity = json.loads(file.read_text(encoding="utf-8"))
    else:
        name = config["wandb_name"] or run.path.name
        identity = {"project": config["wandb_project"], "name": name, "id": uuid.uuid4().hex[:8]}
        run.path.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
    os.environ["WANDB_SILENT"] = "true"
    return WandbLogger(save_dir=run.path, offline=mode == "offline", resume="allow", **identity)
