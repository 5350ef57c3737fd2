"""Architecture and Field: tables that convert configs and weights to and from transformers.

An `Architecture` combines a table of config fields (`Field`) with a table of tensor names
(`KeyMap`). Both tables are used for import and for export.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

from fourfold.core.config import TransformerConfig
from fourfold.core.validation import ImageSize, check_choice, require_sizes
from fourfold.errors import InputError
from fourfold.hub.keymap import KeyMap
from fourfold.layers.base_model import Model

Json = Mapping[str, Any]
# Two values of norm_eps up to this value are treated as equal, because some architectures have a
# fixed value. LayerNorm adds norm_eps to a variance of about 1, so logits differ by rounding only.
MAX_NEGLIGIBLE_EPS = 1e-5
# Config fields that have no key in config.json: initialization, and some kinds of dropout.
UNSAVED_FIELDS = ("init", "ff_dropout", "drop_path", "head_dropout")

# Name of each activation in fourfold, by its name in config.json. If several names in config.json
# mean the same activation, the first of them is used for export.
HF_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}

# Keys of config.json whose value is a dictionary of further settings.
SECTIONS = (
    *("text_config", "vision_config", "rope_parameters", "rope_scaling"),
    *("full_attention", "sliding_attention"),  # in rope_parameters
)
# Keys of config.json that do not change the outputs of a model, unless an architecture reads them:
# names, data types, special tokens, generation, dropout, initialization, pre-training, memory,
# further outputs, heads that are no part of the model, and keys that transformers ignores, too.
IRRELEVANT = re.compile(
    r"_.*|architectures|model_type|transformers(_version|\.js_config)|(torch_)?dtype|use_bfloat16"
    r"|id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|prefix"
    r"|(pad|[be]os|cls|sep|mask|unk|forced_[be]os|decoder_start)_token(_id)?|bad_words_ids"
    r"|(begin_)?suppress_tokens|do_sample|early_stopping|(max|min)_length|num_(return_sequences"
    r"|beams|beam_groups)|temperature|top_[kp]|typical_p|(length|repetition|diversity)_penalty"
    r"|(encoder_)?no_repeat_ngram_size|remove_invalid_values|exponential_decay_length_penalty"
    r"|output_(past|attentions|hidden_states|scores)|return_dict\w*|use_cache|cache_implementation"
    r"|\w*dropout\w*|\w+_layerdrop|init_std|initializer_\w+|\w+_init_value|sinusoidal_pos_embds"
    r"|apply_layernorm|reshape_hidden_states|out_features|out_indices|stage_names|encoder_stride"
    r"|use_mask_token|pos_embed_(jitter|rescale|shift)|sparse_pred\w+|gradient_checkpointing"
    r"|chunk_size_feed_forward|torchscript|tf_legacy_loss|pretraining_tp|reorder_and_upcast_attn"
    r"|deterministic_flash_attn|repad_logits_with_grad|reference_compile|tie_encoder_decoder"
    r"|(pooler|summary)_\w+|classifier_pooling|is_(encoder_)?decoder|(add_)?cross_attention\w*"
    r"|dense_act_fn|is_gated_act|directionality|n_(ctx|positions)|use_mrope|is_llama_config|tie_weights_"
    r"|hidden_act|layer_norm_eps|num_hidden_layers|normalize_(before|embedding)|classif_dropout"
    r"|add_(bias_logits|final_layer_norm)|(extra_pos|static_position)_embeddings|save_step"
    r"|force_bos_token_to_be_generated|position_embedding_type|tie_word_embeddings|tokenizer_class"
)


class _Recorder(dict[str, Any]):
    """Content of config.json that records which keys are read, also those of its sections."""

    def __init__(self, content: Json) -> None:
        sections = {name: content[name] for name in SECTIONS if isinstance(content.get(name), dict)}
        super().__init__({**content, **{name: _Recorder(x) for name, x in sections.items()}})
        self.read = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def unread(self, prefix: str = "") -> list[str]:
        """Return the keys, each after `prefix`, that may be relevant and were not read."""
        found = []
        for key, value in self.items():
            if isinstance(value, _Recorder):
                found += value.unread(f"{prefix}{key}.")
            elif key not in self.read and value not in (None, {}, []):
                found += [] if IRRELEVANT.fullmatch(key) else [prefix + key]
        return found


def get_key(config: Json, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key such as `text_config.hidden_size` in a config.json."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value.get(name)
    return value


def set_key(config: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key in a dictionary; dictionaries in it are replaced by copies."""
    *sections, name = key.split(".")
    for section in sections:
        config[section] = dict(config.get(section) or {})
        config = config[section]
    config[name] = value


def check_allowed(config: Json, allowed: Mapping[str, Collection[Any]]) -> None:
    """Check that dotted keys of a JSON object are absent or have one of their allowed values.

    Raises:
        InputError: A key has a value that is not allowed.
    """
    for key, values in allowed.items():
        value = get_key(config, key, ...)
        if value is not ... and value not in values:
            listed = " or ".join(str(v) for v in values if v is not None) or "null"
            raise InputError(f"must be {listed}, got {str(value)[:80]}", option=key)


@dataclass(frozen=True)
class Field:
    """Config field of fourfold and its keys in config.json.

    Args:
        name: Name of the field in fourfold's config (the native config).
        hf_keys: Dotted keys in config.json. If several of them are present, their values must be
            equal.
        default: Value that config.json implies if all keys are absent.
        from_hf: Function from the value in config.json to the value in the native config.
        to_hf: Inverse of `from_hf`.
    """

    name: str
    hf_keys: tuple[str, ...]
    default: Any
    from_hf: Callable[[Any], Any] = lambda value: value
    to_hf: Callable[[Any], Any] = lambda value: value

    def read(self, config: Json) -> Any:
        """Return the value of the field in fourfold's config, read from the content of config.json.

        Raises:
            InputError: The keys have different values.
        """
        found = {key: get_key(config, key, ...) for key in self.hf_keys}
        values = {key: value for key, value in found.items() if value is not ...}
        first = next(iter(values.values()), self.default)
        if any(value != first for value in values.values()):
            listed = ", ".join(f"{key}={value}" for key, value in values.items())
            message = f"must be equal, since both give the one field {self.name}"
            raise InputError(message, option=listed)
        return self.from_hf(first)


def field(name: str, *hf_keys: str, default: Any = None) -> Field:
    """Create a `Field` whose value is the same in the configs of fourfold and of transformers."""
    return Field(name, hf_keys, default)


def size_fields(
    d_model: int, n_layers: int, n_heads: int, d_ff: int, prefix: str = "", section: str = ""
) -> tuple[Field, ...]:
    """Return the fields of four sizes that most architectures name alike, with their defaults.

    `prefix` precedes the names in fourfold's config, and `section` those in config.json.
    """
    return (
        field(prefix + "d_model", section + "hidden_size", default=d_model),
        field(prefix + "n_layers", section + "num_hidden_layers", default=n_layers),
        field(prefix + "n_heads", section + "num_attention_heads", default=n_heads),
        field(prefix + "d_ff", section + "intermediate_size", default=d_ff),
    )


def square(image_size: ImageSize) -> int:
    """Return the size of a square image.

    Raises:
        InputError: Height and width differ.
    """
    if not isinstance(image_size, int):
        message = "must be a square in transformers for CLIP, or if images are not squashed"
        raise InputError(f"{message}, got {image_size}", option="image_size")
    return image_size


def image_fields(patch_size: int, section: str = "") -> tuple[Field, ...]:
    """Return the fields of the images, by default of 3 channels and 224 pixels along a side.

    With a section of the config (CLIP), transformers supports square images only.
    """
    size = Field("image_size", (section + "image_size",), 224)
    return (
        replace(size, to_hf=square) if section else size,
        field("patch_size", section + "patch_size", default=patch_size),
        field("n_channels", section + "num_channels", default=3),
    )


def activation_field(
    *hf_keys: str, default: str, names: Mapping[str, str] = HF_ACTIVATIONS
) -> Field:
    """Create the `Field` of the activation function.

    `names` is a dictionary from the name of an activation in transformers to its name in fourfold.
    """

    def to_hf(native: str) -> str:
        check_choice("activation", native, tuple(names.values()))
        return next(name for name, value in names.items() if value == native)

    return Field("activation", hf_keys, default, lambda name: names.get(name, name), to_hf)


@dataclass(frozen=True)
class Architecture:
    """Mapping between one model class of transformers and one model class of fourfold ("native").

    Args:
        model_type: Value of `model_type` in config.json.
        hf_class: Name of the transformers class, or a function from a native config to the name.
        model_class: Native model class.
        config_class: Native config class.
        fields: Config fields that have keys in config.json.
        keymap: Table of tensor names and layouts.
        base_model_prefix: Prefix, such as "bert.", that the tensors of the base model (the model
            without its head) have in a model with a head. In a checkpoint of the base model, the
            tensor names lack the prefix.
        implied: Values of the native config fields that are constant for the architecture, by name.
        required: Dictionary from a key of config.json to the only allowed value of the key. The key
            may be absent.
        infer: Function from tensor names and config.json to a dictionary of further native config
            fields.
        extra_config: Function from a native config to a dictionary of further entries of an
            exported config.json.
        constants: Dictionary from the transformers name of a buffer that is computed rather than
            learned, such as sinusoidal positions, to its native name.
        export_if: Function from a native config to True if a model with this config may be exported
            to this architecture. It is not called for a model that was imported from transformers,
            which is exported to its original architecture.
        adapt: Function from the architecture and the content of config.json to the architecture of
            this file, if a key changes the layout of a tensor.
        distinctive: Names of tensors that every checkpoint of this architecture contains, and that
            some architectures with the same `model_type` lack.
        model_options: Function from tensor names to further arguments of the model's constructor,
            such as the number of classification heads in the checkpoint.
        unsaved: Further native config fields that config.json cannot store and that an export
            ignores, because they have an effect in training only.
        unread_by: Other runtimes that are known not to read an export of a run, with versions.
    """

    model_type: str
    hf_class: str | Callable[[Any], str]
    model_class: type[Model]
    config_class: type[TransformerConfig]
    fields: tuple[Field, ...]
    keymap: KeyMap
    base_model_prefix: str = ""
    implied: Mapping[str, Any] = dataclass_field(default_factory=dict)
    required: Mapping[str, Any] = dataclass_field(default_factory=dict)
    infer: Callable[[Collection[str], Json], dict[str, Any]] = lambda names, config: {}
    extra_config: Callable[[Any], dict[str, Any]] = lambda config: {}
    constants: Mapping[str, str] = dataclass_field(default_factory=dict)
    export_if: Callable[[Any], bool] = lambda config: True
    adapt: Callable[["Architecture", Json], "Architecture"] = lambda architecture, config: (
        architecture
    )
    distinctive: tuple[str, ...] = ()
    model_options: Callable[[Collection[str]], dict[str, Any]] = lambda names: {}
    unsaved: tuple[str, ...] = ()
    unread_by: tuple[str, ...] = ()

    def read_config(self, config: Json, names: Collection[str]) -> TransformerConfig:
        """Convert the content of config.json to an instance of `config_class`.

        Args:
            config: Content of config.json.
            names: Names of the tensors in the checkpoint, which imply further settings.

        Raises:
            InputError: A value is not supported or invalid.
        """
        check_allowed(config, {key: (value,) for key, value in self.required.items()})
        values = {field.name: field.read(config) for field in self.fields}
        native = self.config_class(**values | {**self.implied, **self.infer(names, config)})
        require_sizes(native)
        return native

    def unread_keys(self, config: Json, names: Collection[str]) -> list[str]:
        """List the keys of a config.json that may change the outputs and that fourfold ignores."""
        recorder, known = _Recorder(config), dict[str, Any]()
        native = self.read_config(recorder, names)
        with suppress(InputError):  # keys that are read only for some values of other keys
            known = self.extra_config(native)
        return [key for key in recorder.unread() if key not in known]

    def write_config(self, config: Any) -> dict[str, Any]:
        """Convert a config of fourfold to the content of config.json, a dict."""
        resolved = resolve_defaults(config)
        entries = {**self.extra_config(config), **self.required}
        for field in self.fields:
            value = field.to_hf(getattr(resolved, field.name))
            entries.update(dict.fromkeys(field.hf_keys, value))
        hf_class = self.hf_class if isinstance(self.hf_class, str) else self.hf_class(config)
        content = {"architectures": [hf_class], "model_type": self.model_type}
        for key, value in entries.items():
            set_key(content, key, value)
        return content

    def unrepresentable(self, config: Any, names: Collection[str]) -> list[str]:
        """List the settings of a config that an export to config.json would lose or change.

        Args:
            config: Config of fourfold, an instance of `config_class`.
            names: Names of the model's tensors in transformers.

        Returns:
            One text for each setting, such as "activation=silu", or one error message if the config
            cannot be converted.
        """
        try:
            imported = self.read_config(self.write_config(config), names)
        except InputError as error:
            if error.option is not None and hasattr(config, error.option):
                return [f"{error.option}={getattr(config, error.option)}"]
            return [str(error)]
        if max(config.norm_eps, imported.norm_eps) <= MAX_NEGLIGIBLE_EPS:
            # `transformers_format` reports the change.
            imported = replace(imported, norm_eps=config.norm_eps)
        imported = replace(imported, **{name: getattr(config, name) for name in self.unsaved})
        return differing_fields(config, imported)


def resolve_defaults(config: Any) -> Any:
    """Return a copy of a config in which settings with the same meaning have equal values.

    None is replaced by the value that it implies, and the default of `attn_scale` by None.
    `window_pattern` has one letter for each layer, and is None if all layers have the same window.
    Fields for which None means two values are kept, if encoder and decoder differ in their heads.
    """
    letters = "".join("L" if window is None else "S" for window in config.windows())
    values = {
        "d_head": config.head_width,
        "d_value": config.value_width,
        "n_kv_heads": config.kv_heads,
        "attn_scale": None if config.attn_scale == config.head_width**-0.5 else config.attn_scale,
        "qkv_bias": config.bias if config.qkv_bias is None else config.qkv_bias,
        "out_bias": config.bias if config.out_bias is None else config.out_bias,
        "window_pattern": letters if "L" in letters and "S" in letters else None,
    }
    if "S" not in letters:
        values |= {"window": None, "rope_local_theta": None}
    if hasattr(config, "n_decoder_layers"):
        values["n_decoder_layers"] = config.n_decoder_layers or config.n_layers
        values["n_decoder_heads"] = config.n_decoder_heads or config.n_heads
        values["decoder_d_ff"] = config.decoder_d_ff or config.d_ff
        if values["n_decoder_heads"] != config.n_heads:
            names = ("d_head", "d_value", "n_kv_heads", "attn_scale")
            values |= {name: getattr(config, name) for name in names}
    return replace(config, **values)


def differing_fields(config: Any, imported: Any) -> list[str]:
    """List the fields in which two configs differ, as "name=value" with the value in `config`.

    Values that mean the same (see `resolve_defaults`) are equal. The fields in `UNSAVED_FIELDS` are
    not compared.
    """
    before, after = (asdict(resolve_defaults(c)) for c in (config, imported))
    changed = (x for x in before if x not in UNSAVED_FIELDS and before[x] != after[x])
    return [f"{name}={before[name]}" for name in changed]


def norm_eps_note(before: float, after: float) -> str:
    """Return a note such as " (norm_eps changes from 1e-06 to 1e-05)"; "" if both are equal."""
    return "" if before == after else f" (norm_eps changes from {before:g} to {after:g})"
