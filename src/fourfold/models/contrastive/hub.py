"""CLIP: config fields and tensor names of transformers.

config.json has one section for each of the two encoders.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Field, Json, activation_field, field, get_key
from fourfold.hub.keymap import UNSQUEEZE_0, Entry, Extra, KeyMap, Rule
from fourfold.models import CLIP as CLIPModel
from fourfold.models import CLIPConfig
from fourfold.models.encoder_decoder.hub import layer_rules

TEXT = "text_config."
VISION = "vision_config."
_TEXT_EMBED = "text_model.embeddings."
_IMAGE_EMBED = "vision_model.embeddings."
# OpenAI's checkpoints have `eos_token_id: 2`, for which transformers pools the state at the highest
# token id of each text instead of the state at that token.
_POOL_AT_HIGHEST_ID = 2


def tower_fields(prefix: str, section: str, d_model: int, n_heads: int) -> tuple[Field, ...]:
    """Return the config fields of one of the two encoders.

    Args:
        prefix: Prefix of the names in the native config.
        section: Section of config.json, followed by a dot.
        d_model: Width of the encoder if config.json lacks it.
        n_heads: Number of heads if config.json lacks it.
    """
    return (
        field(prefix + "d_model", section + "hidden_size", default=d_model),
        field(prefix + "n_layers", section + "num_hidden_layers", default=12),
        field(prefix + "n_heads", section + "num_attention_heads", default=n_heads),
        field(prefix + "d_ff", section + "intermediate_size", default=4 * d_model),
    )


def tower_rules(native: str, external: str) -> tuple[Entry, ...]:
    """Return the `KeyMap` entries of the layers of one of the two encoders.

    Args:
        native: text or image, the prefix of the native names.
        external: text or vision, the prefix of the names in transformers.
    """
    return layer_rules(
        native + "_stack.blocks.{i}.",
        external + "_model.encoder.layers.{i}.",
        attn_norm="layer_norm1",
        ff="mlp.fc",
        ff_norm="layer_norm2",
    )


_FIELDS = (
    *tower_fields("", TEXT, d_model=512, n_heads=8),
    *tower_fields("image_", VISION, d_model=768, n_heads=12),
    field("vocab_size", TEXT + "vocab_size", default=49408),
    field("max_len", TEXT + "max_position_embeddings", default=77),
    Field(
        "eos_id",
        (TEXT + "eos_token_id",),
        49407,
        lambda token: None if token == _POOL_AT_HIGHEST_ID else token,
        lambda token: _POOL_AT_HIGHEST_ID if token is None else token,
    ),
    field("image_size", VISION + "image_size", default=224),
    field("patch_size", VISION + "patch_size", default=32),
    field("n_channels", VISION + "num_channels", default=3),
    field("d_embed", "projection_dim", default=512),
    # Both towers share these fields, so both sections must have the same values.
    activation_field(TEXT + "hidden_act", VISION + "hidden_act", default="quick_gelu"),
    field("norm_eps", TEXT + "layer_norm_eps", VISION + "layer_norm_eps", default=1e-5),
    field("attn_dropout", TEXT + "attention_dropout", VISION + "attention_dropout", default=0.0),
)


def _check_duplicate_sections(names: Collection[str], config: Json) -> dict[str, Any]:
    """Check that the duplicate sections of an older config.json agree.

    Such a file may contain `text_config_dict` in addition to `text_config`. fourfold reads only
    `text_config`. transformers then reads only `text_config_dict`, and uses its defaults for the
    keys that `text_config_dict` lacks. `text_config` and `text_config_dict` must therefore imply
    equal values. The same holds for `vision_config` and `vision_config_dict`.

    Args:
        names: Ignored.
        config: Content of config.json.

    Returns:
        An empty dictionary, because no config field is inferred.

    Raises:
        InputError: A section and its duplicate imply different values of a key.
    """
    sections = (TEXT[:-1], VISION[:-1])
    overridden = {**config, **{s: config[f"{s}_dict"] for s in sections if config.get(f"{s}_dict")}}
    for entry in _FIELDS:
        for hf_key in entry.hf_keys:
            value, other = (get_key(c, hf_key, entry.default) for c in (config, overridden))
            if value != other and entry.from_hf(value) is not None:
                section, _, key = hf_key.partition(".")
                message = f"and {section}_dict must be equal, got {key} {value} and {other}"
                raise InputError(message, option=section)
    return {}


CLIP = Architecture(
    model_type="clip",
    hf_class="CLIPModel",
    model_class=CLIPModel,
    config_class=CLIPConfig,
    fields=_FIELDS,
    implied={"norm_placement": "pre", "dropout": 0.0},
    required={TEXT + "model_type": "clip_text_model", VISION + "model_type": "clip_vision_model"},
    infer=_check_duplicate_sections,
    # Classes of a single tower read the width of the shared space from their own section.
    extra_config=lambda config: {
        section + "projection_dim": config.d_embed for section in (TEXT, VISION)
    },
    keymap=KeyMap(
        Rule("log_scale", "logit_scale"),
        Rule("text_embed.tokens.weight", _TEXT_EMBED + "token_embedding.weight"),
        Rule("text_embed.positions.weight", _TEXT_EMBED + "position_embedding.weight"),
        *tower_rules("text", "text"),
        Rule("text_stack.norm.{p}", "text_model.final_layer_norm.{p}"),
        Rule("text_projection.weight", "text_projection.weight"),
        Rule("image_embed.prefix", _IMAGE_EMBED + "class_embedding", UNSQUEEZE_0),
        Rule("image_embed.patches.weight", _IMAGE_EMBED + "patch_embedding.weight"),
        Rule("image_embed.positions.weight", _IMAGE_EMBED + "position_embedding.weight"),
        Rule("image_norm.{p}", "vision_model.pre_layrnorm.{p}"),  # misspelled in transformers
        *tower_rules("image", "vision"),
        Rule("image_stack.norm.{p}", "vision_model.post_layernorm.{p}"),
        Rule("image_projection.weight", "visual_projection.weight"),
        Extra("{tower}.embeddings.position_ids"),
    ),
)
