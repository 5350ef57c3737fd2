"""Settings and tokenizer that a config takes from the model in `model.init_from`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fourfold.checkpoints.files import find_checkpoint, is_run
from fourfold.commands.run_directory import RunDirectory
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.tokenization import pretrained
from fourfold.tokenization.training import TokenizerConfig

# Fields of the model config that are set by the task or the data, and not copied from the source.
TASK_FIELDS = {
    *("head", "next_sentence", "n_classes", "head_dropout", "pool", "init"),
    *("feature_layers", "feature_mix", "lstm_width", "lstm_layers"),
}
# Fields of configs that tell what a model reads.
INPUT_FIELDS = {"image_size": "images", "vocab_size": "texts"}


def fill_in_source(config: Any, given: Any, run: RunDirectory | None = None) -> None:
    """Copy the settings and the tokenizer of the model in `model.init_from` to a config, in place.

    The settings are fields of the model's config, such as width and number of layers. Values that
    the user gives are kept. An existing run keeps the settings in its config.yaml, so that it can
    be resumed after the model was deleted. A file of word vectors has no settings. With or without
    a source, a `block_size` of None in the data becomes `max_len` of the model.

    Args:
        config: The parsed config.
        given: The part of the config that the user gave, without default values.
        run: Directory of the run; None if nothing may be read from it or written to it.

    Raises:
        InputError: The model cannot be read, or reads texts instead of images or vice versa.
    """
    model = config["model"]["init_args"]
    path = model.get("init_from")
    classes = tuple(config["allow_class"])
    data = config["data"].get("init_args", {})
    if not _is_model(path):
        _fill_in_length(data, model)
        return
    recorded = _recorded_model(run, path) if run else {}
    model_config = model["config"]
    images_only = "image_size" in model_config and "vocab_size" not in model_config
    shape = recorded.get("config") or vars(_read_source(path, classes, images_only).config)
    given_config = given.get("model.init_args.config", {})
    _check_inputs(shape, model_config, path, classes)
    # Fields with another meaning in an encoder-decoder than in other models.
    differ = ("n_decoder_layers" in shape) != ("n_decoder_layers" in model_config)
    # A segmenter reads the patches, so `pool` only says whether there is a class token.
    own = TASK_FIELDS - {"pool"} if "head_norm" in model_config else TASK_FIELDS
    kept = own | ({"embed_scale", "tie_embeddings"} if differ else set())
    for name in model_config.keys():  # noqa: SIM118  (a jsonargparse namespace)
        if name in shape and name not in given_config and name not in kept:
            model_config[name] = shape[name]
    if "n_classes" in model_config and "n_classes" not in given_config:
        model_config["n_classes"] = None  # filled in by the data
    _fill_in_length(data, model)
    if "tokenizer" not in data:
        return
    if "data.init_args.tokenizer" in given:
        if "vocab_size" not in given_config:
            model_config["vocab_size"] = None
        file = data["tokenizer"]["file"] = _moved_tokenizer(data["tokenizer"]["file"], run)
        if file is None and not (run and run.checkpoints.exists()):
            rank_zero_warn(
                "the config has data.tokenizer without a file, so a new tokenizer is trained, and"
                f" its tokens that {path} lacks get new embeddings"
            )
    else:
        for name, value in _source_tokenizer(path, run, classes).items():
            data["tokenizer"][name] = value


def _fill_in_length(data: Any, model: Any) -> None:
    if data.get("block_size", 0) is None:
        data["block_size"] = model.get("config.max_len")


def _check_inputs(source: Any, target: Any, path: str, classes: tuple[str, ...]) -> None:
    """Raise InputError if one of two models reads images, and the other one reads texts only.

    A model of images and texts fits both, and so does a model with a config `encoder` of its own.
    """
    names = [name for name in INPUT_FIELDS if name in target]
    if names and "encoder" not in target and not any(name in source for name in names):
        allowed = " or ".join(INPUT_FIELDS[name] for name in names)
        family = type(_read_source(path, classes)).__name__
        message = f"must be a model that reads {allowed}, got a {family}"
        raise InputError(message, option="model.init_from", file=path)


def _moved_tokenizer(file: str | None, run: RunDirectory | None) -> str | None:
    """Return the current path of a tokenizer file whose run directory may have been moved."""
    if file is None or run is None or Path(file).exists():
        return file
    copy = run.path / pretrained.TOKENIZER_FILE
    return str(copy) if Path(file).name == copy.name and copy.is_file() else file


def _is_model(path: Any) -> bool:
    if not isinstance(path, str):
        return False
    from fourfold.checkpoints.word_vectors import is_vector_file

    return not is_vector_file(path)


def _recorded_model(run: RunDirectory, path: str) -> dict[str, Any]:
    """Return `model.init_args` in the config.yaml of a run; empty if its `init_from` differs."""
    arguments = run.recorded_config().get("model")
    arguments = arguments.get("init_args") if isinstance(arguments, dict) else None
    return arguments if isinstance(arguments, dict) and arguments.get("init_from") == path else {}


def _source_tokenizer(
    path: str, run: RunDirectory | None, classes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the fields of `TokenizerConfig` for the model in `model.init_from`, if it has one.

    The tokenizer is copied to the run directory, so that resuming does not need the model.
    """
    copy = run.path / pretrained.TOKENIZER_FILE if run else None
    # A run without checkpoints may be started again from another source.
    belongs = run and (run.checkpoints.exists() or _recorded_model(run, path))
    if run and copy and belongs and copy.is_file() and run.config.is_file():
        return asdict(TokenizerConfig(file=str(copy)))
    tokenizer = _read_source(path, classes).tokenizer
    if tokenizer is None:
        return {}
    source = copy or directory.resolve_path(path)
    if copy:
        tokenizer.save(copy)
    elif directory.is_model_directory(source) and (files := pretrained.tokenizer_files(source)):
        return asdict(files)
    elif is_run(source):
        saved = source / pretrained.TOKENIZER_FILE  # of a run
        source = saved if saved.is_file() else find_checkpoint(source)
    return asdict(TokenizerConfig(file=str(source)))


def _read_source(*arguments: Any) -> Any:
    from fourfold.checkpoints.init_from import read_source  # which a plain training does not need

    return read_source(*arguments)
