"""`Architecture`: how a model class of transformers maps to a fourfold model and its config.

An `Architecture` combines a table of config fields (`Field`) with a table of tensor names
(`KeyMap`). Both tables are used for import and for export.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from os import PathLike
from typing import Any

from fourfold.core.config import TransformerConfig
from fourfold.core.validation import require_sizes
from fourfold.errors import InputError
from fourfold.hub.keymap import KeyMap
from fourfold.models.base import Model

Json = Mapping[str, Any]
# Two values of norm_eps up to this one are treated as equal, because some architectures have a
# fixed value. LayerNorm adds it to a variance of about 1, so logits differ by rounding only.
MAX_NEGLIGIBLE_EPS = 1e-5
# Config fields that no config.json holds: initialization, and dropout that only training applies.
UNSAVED_FIELDS = ("init", "ff_dropout", "drop_path", "head_dropout")

# Names of activations in config.json for each native name. The first one is used for export.
HF_ACTIVATIONS = {
    "relu": ("relu",),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "quick_gelu": ("quick_gelu",),
    "silu": ("silu", "swish"),
}


def get_key(config: Json, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key such as `text_config.hidden_size`, or `default`."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


def has_key(config: Json, key: str) -> bool:
    """Return True if `get_key` finds a value, which may be None."""
    missing = object()
    return get_key(config, key, missing) is not missing


def set_key(config: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key; nested dictionaries are copied before they are changed."""
    *sections, name = key.split(".")
    for section in sections:
        nested = dict(config.get(section) or {})
        config[section] = nested
        config = nested
    config[name] = value


@dataclass(frozen=True)
class Field:
    """A config field and its keys in config.json.

    Args:
        name: Name of the field in the native config.
        hf_keys: Keys in config.json, which must have equal values; "section.key" in a section.
        default: Value of an absent key.
        from_hf: Converts the value in config.json to the native value.
        to_hf: Inverse of `from_hf`.
    """

    name: str
    hf_keys: tuple[str, ...]
    default: Any
    from_hf: Callable[[Any], Any] = lambda value: value
    to_hf: Callable[[Any], Any] = lambda value: value

    def read(self, config: Json, file: str | PathLike[str]) -> Any:
        """Return the native value.

        Raises:
            InputError: The keys have different values, or a value of a wrong type.
        """
        values = {key: get_key(config, key) for key in self.hf_keys if has_key(config, key)}
        first = next(iter(values.values()), self.default)
        if any(value != first for value in values.values()):
            listed = ", ".join(f"{key}={value}" for key, value in values.items())
            raise InputError(
                f"{listed} must be equal, since both give the one field {self.name}", file=file
            )
        try:
            return self.from_hf(first)
        except TypeError as error:
            raise InputError(
                f"has a wrong type: {str(first)[:80]!r}",
                option=" and ".join(self.hf_keys),
                file=file,
            ) from error


def field(name: str, *hf_keys: str, default: Any = None) -> Field:
    """Create a field whose value is the same in both configs."""
    return Field(name, hf_keys, default)


def activation_field(
    hf_keys: str | tuple[str, ...], default: str, native_names: Mapping[str, str] | None = None
) -> Field:
    """Create the field of the activation function.

    Args:
        hf_keys: Key or keys in config.json.
        default: Value of an absent key.
        native_names: Native name of each name that the architecture allows; None for all names in
            `HF_ACTIVATIONS`.
    """
    if native_names is None:
        native_names = {name: native for native, names in HF_ACTIVATIONS.items() for name in names}
    names = native_names
    # Reversed, so that the first of several names for one function is kept.
    hf_names = {native: name for name, native in reversed(list(names.items()))}

    def to_hf(native: str) -> str:
        if native not in hf_names:
            raise InputError(f"must be one of {', '.join(hf_names)}", option="activation")
        return hf_names[native]

    keys = (hf_keys,) if isinstance(hf_keys, str) else hf_keys
    return Field("activation", keys, default, lambda name: names.get(name, name), to_hf)


@dataclass(frozen=True)
class Architecture:
    """Mapping between one model class of transformers and one model class of fourfold.

    Args:
        model_type: Value of `model_type` in config.json.
        model_class: Native model class.
        config_class: Native config class.
        fields: Config fields with keys in config.json.
        implied: Native config fields that are constant for the architecture.
        required: Keys and the only values that they may have, if they are present.
        infer: Derives native config fields from tensor names and config.json.
        hf_class_for: Returns the name of the transformers class for a native config.
        base_model_prefix: Prefix of the tensor names of a model with a head, which are absent from
            a checkpoint of the base model.
        keymap: Tensor names and layouts.
        extra_config: Returns further entries of an exported config.json.
        constants: Native buffers that are computed rather than learned, by external name.
        export_if: Returns True for configs that may be exported as this architecture, if the model
            was not imported from it.
        matches: Returns True for the tensor names of this architecture, for architectures that
            share a `model_type`.
        hf_class: Name of the transformers class, if the architecture has a single one.
        count_heads: Returns the number of `heads` of the model that are among the tensor names, for
            models whose checkpoints may lack them.
    """

    model_type: str
    model_class: type[Model]
    config_class: type[TransformerConfig]
    fields: tuple[Field, ...]
    implied: Mapping[str, Any]
    required: Mapping[str, Any]
    infer: Callable[[Collection[str], Json], dict[str, Any]]
    hf_class_for: Callable[[Any], str]
    base_model_prefix: str
    keymap: KeyMap
    extra_config: Callable[[Any], dict[str, Any]] = lambda config: {}
    constants: Mapping[str, str] = dataclass_field(default_factory=dict)
    export_if: Callable[[Any], bool] = lambda config: True
    matches: Callable[[Collection[str]], bool] = lambda names: True
    hf_class: str = ""
    count_heads: Callable[[Collection[str]], int] | None = None

    def read_config(
        self, config: Json, names: Collection[str], file: str | PathLike[str]
    ) -> TransformerConfig:
        """Convert config.json to a native config.

        Args:
            config: Content of config.json.
            names: External names of the tensors.
            file: Path of config.json, for error messages.

        Raises:
            InputError: A value is not supported or invalid.
        """
        for key, allowed in self.required.items():
            value = get_key(config, key, allowed)
            if value != allowed:
                raise InputError(f"must be {allowed}, got {value}", option=key, file=file)
        values = {field.name: field.read(config, file) for field in self.fields}
        try:
            values |= {**self.implied, **self.infer(names, config)}
            native = self.config_class(**values)
            require_sizes(native)
        except InputError as error:
            raise error.in_file(file) from error
        except TypeError as error:  # raised before the config checks its fields
            raise InputError(f"a value has a wrong type ({error})", file=file) from error
        return native

    def write_config(self, config: Any) -> dict[str, Any]:
        """Convert a native config to the content of config.json."""
        resolved = resolve_defaults(config)
        entries = {**self.extra_config(config), **self.required}
        for field in self.fields:
            value = field.to_hf(getattr(resolved, field.name))
            entries.update(dict.fromkeys(field.hf_keys, value))
        content = {"architectures": [self.hf_class_for(config)], "model_type": self.model_type}
        for key, value in entries.items():
            set_key(content, key, value)
        return content

    def unrepresentable(self, config: Any, names: Collection[str]) -> list[str]:
        """List the settings of a native config that the exported config.json would change.

        Args:
            config: Native config.
            names: External names of the model's tensors.
        """
        try:
            imported = self.read_config(self.write_config(config), names, self.model_type)
        except InputError as error:
            if error.option is not None and hasattr(config, error.option):
                return [f"{error.option}={getattr(config, error.option)}"]
            return [str(error)]
        before = comparable_fields(config)
        after = comparable_fields(imported)
        if max(before["norm_eps"], after["norm_eps"]) <= MAX_NEGLIGIBLE_EPS:
            after["norm_eps"] = before["norm_eps"]  # `transformers_format` reports the change
        return [f"{name}={value}" for name, value in before.items() if value != after[name]]


def resolve_defaults(config: Any) -> Any:
    """Replace fields that are None by the values they stand for."""
    scale = None if config.attn_scale == config.head_width**-0.5 else config.attn_scale
    values = {"d_head": config.head_width, "d_value": config.value_width, "attn_scale": scale}
    if hasattr(config, "n_decoder_layers"):
        values["n_decoder_layers"] = config.n_decoder_layers or config.n_layers
    return replace(config, **values)


def comparable_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a config without `UNSAVED_FIELDS`, with defaults resolved."""
    values = asdict(resolve_defaults(config))
    return {name: value for name, value in values.items() if name not in UNSAVED_FIELDS}


def choose_architecture(architectures: Iterable[Architecture], model: Model) -> Architecture:
    """Return the first architecture that represents every setting of a model.

    Raises:
        InputError: No architecture does.
    """
    config: Any = model.config
    reasons = []
    for architecture in architectures:
        if type(model) is not architecture.model_class or not architecture.export_if(config):
            continue
        names = architecture.keymap.to_external(model.state_dict(), {})[0].keys()
        problems = architecture.unrepresentable(config, names)
        if not problems:
            return architecture
        reasons.append(f"{architecture.model_type} does not support {', '.join(problems)}")
    detail = "; ".join(reasons) or "transformers has no class for this model"
    raise InputError(
        f"{type(model).__name__} cannot be exported to transformers: {detail}", option="model"
    )
