"""What is known of a foreign architecture: its config.json and its names, both as tables."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import field as field_of_dataclass
from typing import Any

from torch import nn

from fourfold.core.config import TransformerConfig, refuse_open
from fourfold.core.errors import InputError
from fourfold.hub.keymap import KeyMap

Json = Mapping[str, Any]
# What is added to a variance of about 1: between two numbers as small as this, logits differ by
# little more than rounding. Some architectures have theirs in the code, not in config.json.
SMALL_EPS = 1e-5

# Their words for our activations; the first of each is the one we write.
ACTIVATION_WORDS = {
    "relu": ("relu",),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "quick_gelu": ("quick_gelu",),
    "silu": ("silu", "swish"),
}


def said_of(config: Json, key: str) -> tuple[Any, ...]:
    """What config.json says under a key, as the only entry; a dot goes one section down."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return ()
        value = value[name]
    return (value,)


def say(config: dict[str, Any], key: str, value: Any) -> None:
    """Write it where `said_of` finds it."""
    *sections, name = key.split(".")
    for section in sections:
        inner = dict(config.get(section) or {})  # not in another's dictionary
        config[section] = inner
        config = inner
    config[name] = value


@dataclass(frozen=True)
class Field:
    """One field of our config, and where config.json says it.

    Args:
        ours: Our field.
        theirs: Their keys, which must agree with each other; "section.key" in a section.
        default: What an absent key means.
        read: Their value to ours.
        write: Our value to theirs.
    """

    ours: str
    theirs: tuple[str, ...]
    default: Any
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value

    def value(self, config: Json, where: str) -> Any:
        """Our value of what `config` says.

        Raises:
            InputError: Keys that we have one field for disagree, or hold another kind of value.
        """
        said = {key: value for key in self.theirs for value in said_of(config, key)}
        values = list(said.values()) or [self.default]
        if any(value != values[0] for value in values):
            both = " and ".join(f"{key} {value}" for key, value in said.items())
            raise InputError(f"{where}: {both} differ, but fourfold has one {self.ours}")
        try:
            return self.read(values[0])
        except TypeError as error:
            names = " and ".join(self.theirs)
            raise InputError(f"{where}: {names} cannot be {str(values[0])[:80]!r}") from error


def field(ours: str, *theirs: str, default: Any = None) -> Field:
    """A field that says the same on both sides."""
    return Field(ours, theirs, default)


def activation(
    theirs: str | tuple[str, ...], default: str, words: Mapping[str, str] | None = None
) -> Field:
    """The activation by their word for it; `words` to ours are all that an architecture knows."""
    keys = (theirs,) if isinstance(theirs, str) else theirs
    general = {word: name for name, several in ACTIVATION_WORDS.items() for word in several}
    ours = words or general
    writes = {name: word for word, name in reversed(list(ours.items()))}  # the first word of each
    return Field(
        "activation", keys, default,
        lambda word: ours.get(word, word), lambda name: writes[name],
    )  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A family of ours under a foreign name.

    Args:
        model_type: What config.json calls it.
        family: Our model class.
        config: Its config class.
        fields: What config.json says.
        fixed: What the architecture settles for our config without saying it.
        must: What config.json must say, if it says it, for a model of ours to be the same.
        told: Fields of our config that the names of tensors and config.json together tell.
        class_of: Our config to the name of their class that has the same parts.
        prefix: What a model with a head puts in front of the names of the model without one.
        keys: Names and layouts.
        written: What else a config.json of our own making says of a config.
        constants: What both compute rather than learn, by their names and ours, where it is stored.
        suits: Whether a config without a history is best written so.
        holds: Whether tensors of these names are its own, where several share a model_type.
        only: Their class, where it is always the same and config.json may name it.
        heads: How many of our `heads` tensors of these names fill, where there may be fewer.
    """

    model_type: str
    family: type[nn.Module]
    config: type[TransformerConfig]
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any]
    must: Mapping[str, Any]
    told: Callable[[Collection[str], Json], dict[str, Any]]
    class_of: Callable[[Any], str]
    prefix: str
    keys: KeyMap
    written: Callable[[Any], dict[str, Any]] = lambda config: {}
    constants: Mapping[str, str] = field_of_dataclass(default_factory=dict)
    suits: Callable[[Any], bool] = lambda config: True
    holds: Callable[[Collection[str]], bool] = lambda names: True
    only: str = ""
    heads: Callable[[Collection[str]], int] | None = None

    def read_config(self, config: Json, names: Collection[str], where: str) -> TransformerConfig:
        """Our config for their config.json and the names of their tensors.

        Raises:
            InputError: It says something that no model of ours can be.
        """
        for key, value in self.must.items():
            for said in said_of(config, key):
                if said != value:
                    raise InputError(f"{where}: {key} is {said}, but must be {value}")
        values = {field.ours: field.value(config, where) for field in self.fields}
        try:
            found = self.config(**{**values, **self.fixed, **self.told(names, config)})
            refuse_open(found)
            return found
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        except TypeError as error:  # told apart from names and config, before a field is checked
            raise InputError(f"{where}: a value is of another kind than it should be") from error

    def write_config(self, config: Any) -> dict[str, Any]:
        """config.json for a config of ours."""
        said = {"architectures": [self.class_of(config)], "model_type": self.model_type}
        whole = spelled_out(config)
        entries = {**self.written(config), **self.must}
        for entry in self.fields:
            entries.update(dict.fromkeys(entry.theirs, entry.write(getattr(whole, entry.ours))))
        for key, value in entries.items():
            say(said, key, value)
        return said

    def cannot_say(self, config: Any, names: Collection[str]) -> list[str]:
        """Fields of a config that would not come back from what is written under these names."""
        try:
            back = self.read_config(self.write_config(config), names, self.model_type)
        except (InputError, KeyError) as error:
            return [str(error)]
        mine, theirs = comparable(config), comparable(back)
        if max(mine["norm_eps"], theirs["norm_eps"]) <= SMALL_EPS:
            theirs["norm_eps"] = mine["norm_eps"]  # `foreign.write` says that it changes
        return [f"{key}={value}" for key, value in mine.items() if value != theirs[key]]


def spelled_out(config: Any) -> Any:
    """A config in which what may be left to a default is said."""
    scale = None if config.attn_scale == config.head_width**-0.5 else config.attn_scale
    said = {"d_head": config.head_width, "d_value": config.value_width, "attn_scale": scale}
    if hasattr(config, "n_decoder_layers"):
        said["n_decoder_layers"] = config.n_decoder_layers or config.n_layers
    return replace(config, **said)


UNSEEN = ("init", "ff_dropout", "drop_path", "head_dropout")


def comparable(config: Any) -> dict[str, Any]:
    """The fields that make the model: not how its weights began, nor what training drops where."""
    fields = asdict(spelled_out(config))
    return {k: v for k, v in fields.items() if k not in UNSEEN}


def choose(architectures: Iterable[Architecture], model: nn.Module) -> Architecture:
    """The first architecture that can say all of a model's config.

    Raises:
        InputError: None can.
    """
    config: Any = model.config
    reasons = []
    for architecture in architectures:
        if type(model) is not architecture.family or not architecture.suits(config):
            continue
        names = architecture.keys.write(model.state_dict(), {})[0].keys()
        wrong = architecture.cannot_say(config, names)
        if not wrong:
            return architecture
        reasons.append(f"{architecture.model_type} cannot have {', '.join(wrong)}")
    raise InputError(
        f"no architecture of transformers that fourfold knows is this {type(model).__name__}: "
        + ("; ".join(reasons) or "it is none of the families")
    )
