"""CLIP: config fields, in one section for each tower, and tensor names of transformers."""

from collections.abc import Collection, Iterator
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Field, Json, activation_field, field, get_key
from fourfold.hub.keymap import UNSQUEEZE_0, Entry, Ignored, KeyMap, Rule
from fourfold.models import CLIP as CLIPModel
from fourfold.models import CLIPConfig

_TEXT = "text_config."
_VISION = "vision_config."
# OpenAI's checkpoints have `eos_token_id: 2`, for which transformers pools the state at the highest
# token id of each text instead of the state at that token.
_POOL_AT_HIGHEST_ID = 2


def _shared_field(name: str, hf_key: str, default: Any) -> Field:
    """Create a field that both towers share, so that both sections must have the same value."""
    return field(name, _TEXT + hf_key, _VISION + hf_key, default=default)


def _tower_fields(prefix: str, section: str, d_model: int, n_heads: int) -> tuple[Field, ...]:
    return (
        field(prefix + "d_model", section + "hidden_size", default=d_model),
        field(prefix + "n_layers", section + "num_hidden_layers", default=12),
        field(prefix + "n_heads", section + "num_attention_heads", default=n_heads),
        field(prefix + "d_ff", section + "intermediate_size", default=4 * d_model),
    )


def _tower_entries(native: str, external: str) -> Iterator[Entry]:
    block = native + "_stack.blocks.{i}."
    layer = external + "_model.encoder.layers.{i}."
    for projection in "qkv":
        yield Rule(
            block + f"attn.{projection}." + "{p}", layer + f"self_attn.{projection}_proj." + "{p}"
        )
    yield Rule(block + "attn.out.{p}", layer + "self_attn.out_proj.{p}")
    yield Rule(block + "attn_norm.{p}", layer + "layer_norm1.{p}")
    yield Rule(block + "ff.up.{p}", layer + "mlp.fc1.{p}")
    yield Rule(block + "ff.down.{p}", layer + "mlp.fc2.{p}")
    yield Rule(block + "ff_norm.{p}", layer + "layer_norm2.{p}")
    yield Ignored(external + "_model.embeddings.position_ids")


_FIELDS = (
    *_tower_fields("", _TEXT, d_model=512, n_heads=8),
    *_tower_fields("image_", _VISION, d_model=768, n_heads=12),
    field("vocab_size", _TEXT + "vocab_size", default=49408),
    field("max_len", _TEXT + "max_position_embeddings", default=77),
    Field(
        "eos_id",
        (_TEXT + "eos_token_id",),
        49407,
        lambda token: None if token == _POOL_AT_HIGHEST_ID else token,
        lambda token: _POOL_AT_HIGHEST_ID if token is None else token,
    ),
    field("image_size", _VISION + "image_size", default=224),
    field("patch_size", _VISION + "patch_size", default=32),
    field("n_channels", _VISION + "num_channels", default=3),
    field("d_embed", "projection_dim", default=512),
    activation_field((_TEXT + "hidden_act", _VISION + "hidden_act"), "quick_gelu"),
    _shared_field("norm_eps", "layer_norm_eps", 1e-5),
    _shared_field("attn_dropout", "attention_dropout", 0.0),
)


def _check_duplicate_sections(names: Collection[str], config: Json) -> dict[str, Any]:
    """Check the sections `text_config_dict` and `vision_config_dict` of older files.

    transformers lets them override `text_config` and `vision_config`, and takes its defaults for
    keys that they lack.
    """
    for entry in _FIELDS:
        for hf_key in entry.hf_keys:
            section, _, key = hf_key.partition(".")
            override = config.get(section + "_dict")
            if not key or not override:
                continue
            value = get_key(config, hf_key, entry.default)
            other = override.get(key, entry.default)
            if value != other and entry.from_hf(value) is not None:
                raise InputError(
                    f"and {section}_dict must be equal, got {key} {value} and {other}",
                    option=section,
                )
    return {}


CLIP = Architecture(
    model_type="clip",
    model_class=CLIPModel,
    config_class=CLIPConfig,
    fields=_FIELDS,
    implied={"norm_placement": "pre", "dropout": 0.0},
    required={
        _TEXT + "model_type": "clip_text_model",
        _VISION + "model_type": "clip_vision_model",
    },
    infer=_check_duplicate_sections,
    hf_class_for=lambda config: "CLIPModel",
    base_model_prefix="",
    # Classes of a single tower read the width of the shared space from their own section.
    extra_config=lambda config: {
        section + "projection_dim": config.d_embed for section in (_TEXT, _VISION)
    },
    keymap=KeyMap(
        (
            Rule("log_scale", "logit_scale"),
            Rule("text_embed.tokens.weight", "text_model.embeddings.token_embedding.weight"),
            Rule("text_embed.positions.weight", "text_model.embeddings.position_embedding.weight"),
            *_tower_entries("text", "text"),
            Rule("text_stack.norm.{p}", "text_model.final_layer_norm.{p}"),
            Rule("text_projection.weight", "text_projection.weight"),
            Rule("image_embed.prefix", "vision_model.embeddings.class_embedding", UNSQUEEZE_0),
            Rule("image_embed.patches.weight", "vision_model.embeddings.patch_embedding.weight"),
            Rule(
                "image_embed.positions.weight", "vision_model.embeddings.position_embedding.weight"
            ),
            Rule("image_norm.{p}", "vision_model.pre_layrnorm.{p}"),  # misspelled in transformers
            *_tower_entries("image", "vision"),
            Rule("image_stack.norm.{p}", "vision_model.post_layernorm.{p}"),
            Rule("image_projection.weight", "visual_projection.weight"),
        )
    ),
)
