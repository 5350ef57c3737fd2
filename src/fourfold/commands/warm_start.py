"""With `init_from`, what a config leaves open comes from there: the shape, the tokenizer."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.config_files import is_given
from fourfold.commands.run_directory import RunDirectory
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.hub import directory, processing
from fourfold.tasks.checkpoint import checkpoint_of
from fourfold.tasks.start import read_source

# What the task or the data decide, whatever the source had.
OWN = ("head", "next_sentence", "n_classes", "head_dropout", "pool", "layers", "mix", "lstm",
       "lstm_layers", "init")  # fmt: skip


def begins_elsewhere(config: Any) -> bool:
    """Whether a parsed config names weights to begin with."""
    return bool(config["model"].get("init_args", {}).get("init_from"))


def take_over(config: Any, arguments: list[str], run: RunDirectory | None = None) -> None:
    """Fill in the model's and the data's section of a parsed config, in place.

    What the user wrote stays, and of two sources nothing is taken. A run that exists already has
    settled all that in its config.yaml, so that it goes on also where the source is gone.

    Raises:
        InputError: The source cannot be read.
    """
    model = config["model"]["init_args"]
    path = model.get("init_from")
    if not isinstance(path, str):
        return
    shape = (_settled(run, path) if run else {}) or _shape(path)
    wanted = model["config"]
    for name in wanted.keys():  # noqa: SIM118  (a jsonargparse namespace)
        if name in shape and not is_given(f"model.config.{name}", arguments):
            wanted[name] = shape[name]
    if "n_classes" in wanted and not is_given("model.config.n_classes", arguments):
        wanted["n_classes"] = None  # the data's
    data = config["data"].get("init_args", {})
    if "tokenizer" not in data:
        return
    if is_given("data.tokenizer", arguments):
        if not is_given("model.config.vocab_size", arguments):
            wanted["vocab_size"] = None
        data["tokenizer"]["file"] = _moved(data["tokenizer"]["file"], run)
    elif found := _tokenizer(path, run):
        for name, value in found.items():
            data["tokenizer"][name] = value


def _moved(file: str | None, run: RunDirectory | None) -> str | None:
    """A tokenizer's file, which with its run may lie somewhere else by now."""
    if file is None or run is None or Path(file).exists():
        return file
    kept = run.path / processing.TOKENIZER
    return str(kept) if Path(file).name == kept.name and kept.is_file() else file


def _settled(run: RunDirectory, path: str) -> dict[str, Any]:
    """The shape in the run's config.yaml, if it began with the same source."""
    return _open(_began(run, path).get("config") or {})


def _began(run: RunDirectory, path: str) -> dict[str, Any]:
    """The model's arguments in the run's config.yaml, if it began with the same source."""
    if not run.config.is_file():
        return {}
    saved = yaml.safe_load(run.config.read_text(encoding="utf-8")) or {}
    args: dict[str, Any] = (saved.get("model") or {}).get("init_args") or {}
    return args if args.get("init_from") == path else {}


def _shape(path: str) -> dict[str, Any]:
    config: Any = read_source(path).model.config
    return _open({field.name: getattr(config, field.name) for field in fields(config)})


def _open(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in OWN}


def _has_words(run: RunDirectory, path: str) -> bool:
    return run.config.is_file() and (run.checkpoints.exists() or bool(_began(run, path)))


def _tokenizer(path: str, run: RunDirectory | None) -> dict[str, Any]:
    """Where the source's tokenizer is, as a config of ours; empty if it has none.

    A run keeps a copy beside its config, so that it does not need the source again. One that came
    to no checkpoint may begin anew with another source.
    """
    kept = run.path / processing.TOKENIZER if run else None
    if run is not None and kept is not None and kept.is_file() and _has_words(run, path):
        return asdict(TokenizerConfig(file=str(kept)))
    text = read_source(path).tokenizer
    if text is None:
        return {}
    if kept is None:
        place = directory.located(path)
        found = processing.tokenizer_files(place) if directory.is_directory(place) else None
        if found is None:
            found = TokenizerConfig(file=str(checkpoint_of(place) if place.is_dir() else place))
        return asdict(found)
    Tokenizer.from_str(text).save(kept)
    return asdict(TokenizerConfig(file=str(kept)))
