"""Model card: the README.md of an exported directory, from the files of its run.

Files of the run are read as data. Of the classes that they name, only fourfold's are imported.
"""

import re
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
# Options of the trainer that hold accounts and folders of the machine.
LEFT_OUT = ("logger", "callbacks", "plugins")
_SECRET = re.compile(r"(^|_)(token|key|password|secret|storage_options)$", re.IGNORECASE)
# User name and password of a URL, and values that sign it.
_ACCESS = re.compile(
    r"(?<=://)[^/\s]*@|(?<=[?&])[\w-]*(token|key|sig|signature|secret)=[^&\s]*", re.I
)
_HUB_DATASET = re.compile(r"[\w-]+|\w[\w.-]*/\w[\w.-]*")
# Names that `datasets.load_dataset` does not look up on the hub.
_BUILDERS = (
    "arrow audiofolder cache csv eval generator hdf5 imagefolder json lance niifolder pandas"
)
_BUILDERS += " parquet pdffolder spark sql text videofolder webdataset xml"


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
        facts["recipe"] = _recipe(config := run.recorded_config())
        facts["datasets"] = _datasets(config["data"]["init_args"])
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
    trainer = {name: x for name, x in config["trainer"].items() if name not in LEFT_OUT}
    return recipe | {"trainer": _changed(trainer, _defaults(Trainer))}


def _datasets(data: Mapping[str, Any]) -> list[str]:
    """Return the name on the hub of the dataset that the options of a DataModule name, if any."""
    hub = (data.get("source") == "hub" and data.get("hub")) or {}
    name = hub.get("path") or ""
    is_local = name in _BUILDERS.split() or Path(name).exists() or hub.get("options")
    return [name] if _HUB_DATASET.fullmatch(name) and not is_local else []


def _defaults(made: Any) -> dict[str, Any]:
    """Return the default values of the arguments of a class; those of a dataclass are a dict."""
    values = {name: x.default for name, x in signature(made).parameters.items()}
    return {k: asdict(x) if hasattr(x, "__dataclass_fields__") else x for k, x in values.items()}


def _changed(value: Any, default: Any = None) -> Any:
    """Return what differs from the default, without secrets; of an absolute path, the last name."""
    if isinstance(value, dict):
        known = default if isinstance(default, dict) else {}
        pairs = {name: (x, as_list(known.get(name))) for name, x in value.items()}
        public = {k: x for k, x in pairs.items() if x[0] != x[1] and not _SECRET.search(str(k))}
        found = {name: _changed(*x) for name, x in public.items()}
        return {name: x for name, x in found.items() if x != {}}
    if isinstance(value, list | tuple):
        return [_changed(x) for x in value]
    if not isinstance(value, str):
        return value
    return Path(value).name or value if value.startswith(("/", "~")) else _ACCESS.sub("", value)
