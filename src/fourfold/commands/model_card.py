"""Model card: the README.md of an exported directory, from the files of its run.

Files of the run are read as data. Of the classes that they name, only fourfold's are imported.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChainableUndefined, Environment
from lightning import Trainer

import fourfold.data
import fourfold.tasks
from fourfold.checkpoints.files import is_checkpoint, read_file
from fourfold.checkpoints.schema import as_list
from fourfold.commands.compare_runs import read_curves, read_metrics
from fourfold.commands.run_directory import UNREADABLE, RunDirectory
from fourfold.environment import commit, now, versions
from fourfold.errors import InputError
from fourfold.families import members
from fourfold.hub.directory import CONFIG_FILE
from fourfold.json_files import read_json

# Options that change the weights, beside those of model, data and trainer.
OPTIONS = ("seed_everything", "optimizer", "lr_scheduler", "ema_decay", "average_last_checkpoints")


def write_card(model: Any, folder: Path, source: Path, path: str, **facts: Any) -> None:
    """Write README.md into an exported directory. It states only what the files of the run record.

    Args:
        model: The exported model.
        folder: The directory.
        source: Checkpoint or run directory of the model.
        path: Place of the directory for `fourfold.load`, such as hf://owner/name.
        **facts: The format of the directory (`format`), and the certificate of its verification or
            None (`report`).
    """
    run = RunDirectory(source.parent.parent if is_checkpoint(source) else source)
    with suppress(InputError, *UNREADABLE):  # an imported model has no run
        checkpoint = run.find_checkpoint(str(source))
        facts["checkpoint"] = checkpoint.name
        facts["step"] = step = read_file(checkpoint, mmap=True, meta=True)["global_step"]
        facts["recipe"] = _recipe(run.recorded_config())
        facts["validation"] = {
            name: max((s, x) for s, x in zip(*curve, strict=True) if s <= step)
            for name, curve in read_curves(run.path).items()
            if name.startswith("val/") and min(curve[0]) <= step
        }
        facts["tested"] = (run.metrics or {})["run"]
        facts["test"] = read_metrics(run.path, validation=False)
    text = Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8")
    blocks: dict[str, Any] = dict.fromkeys(("trim_blocks", "lstrip_blocks"), True)
    environment = Environment(undefined=ChainableUndefined, **blocks)
    environment.filters["yaml"] = lambda x: yaml.safe_dump(x, sort_keys=False, allow_unicode=True)
    card = environment.from_string(text).render(
        path=path,
        classes=[x.__name__ for x in type(model).__mro__],
        config=model.config,
        exported=read_json(folder / CONFIG_FILE, optional=True),
        n_parameters=sum(p.numel() for p in model.parameters()),
        versions=versions("fourfold", "torch"),
        commit=commit(),
        date=now()[:10],
        files={file.name: file.stat().st_size for file in sorted(folder.iterdir())},
        **facts,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a config that differ from the defaults, and the source of the data."""
    recipe = {key: config[key] for key in OPTIONS if config.get(key)}
    modules = {
        "model": (fourfold.tasks, members("tasks")),
        "data": (fourfold.data, fourfold.data.__all__),
    }
    for key, (module, names) in modules.items():
        path, values = config[key]["class_path"], config[key]["init_args"]
        package, _, name = path.rpartition(".")
        is_known = package == module.__name__ and name in names
        changed = _changed(values, _defaults(getattr(module, name)) if is_known else {})
        kept = {"source": values["source"]} if "source" in values else {}
        recipe[key] = {"class_path": path, "init_args": kept | changed}
    return recipe | {"trainer": _changed(config["trainer"], _defaults(Trainer))}


def _defaults(made: Any) -> dict[str, Any]:
    """Return the default values of the arguments of a class; those of a dataclass are a dict."""
    values = {name: x.default for name, x in signature(made).parameters.items()}
    return {k: asdict(x) if hasattr(x, "__dataclass_fields__") else x for k, x in values.items()}


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the defaults; of an absolute path, only the last name."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        default = as_list(defaults.get(name))
        if isinstance(value, dict):
            value = _changed(value, default if isinstance(default, dict) else {}) or default
        if value != default:
            is_path = isinstance(value, str) and Path(value).is_absolute()
            changed[name] = Path(value).name if is_path else value
    return changed
