"""CLIP: config fields and tensor names of transformers.

config.json has one section for each of the two encoders.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import (
    Architecture,
    Field,
    Json,
    activation_field,
    field,
    get_key,
    image_fields,
    size_fields,
)
from fourfold.hub.keymap import UNSQUEEZE_0, Entry, Extra, KeyMap, Rule
from fourfold.models import CLIP as CLIPModel
from fourfold.models import CLIPConfig
from fourfold.models.encoder_decoder.hub import layer_rules

TEXT = "text_config."
VISION = "vision_config."
_DROPOUT = "attention_dropout"
# OpenAI's checkpoints have `eos_token_id: 2`, for which transformers pools the state at the highest
# token id of each text instead of the state at that token.
_POOL_AT_HIGHEST_ID = 2


def two_tower_fields(
    vocab_size: int, max_len: int, patch_size: int, activation: str, norm_eps: float
) -> tuple[Field, ...]:
    """Return the config fields, beside the sizes, that CLIP and SigLIP name alike."""
    return (
        field("vocab_size", TEXT + "vocab_size", default=vocab_size),
        field("max_len", TEXT + "max_position_embeddings", default=max_len),
        *image_fields(patch_size, VISION),
        # Both towers share these fields, so both sections must have the same values.
        activation_field(TEXT + "hidden_act", VISION + "hidden_act", default=activation),
        field("norm_eps", TEXT + "layer_norm_eps", VISION + "layer_norm_eps", default=norm_eps),
        field("attn_dropout", TEXT + _DROPOUT, VISION + _DROPOUT, default=0.0),
    )


def two_tower_rules() -> tuple[Entry, ...]:
    """Return the `KeyMap` entries that CLIP and SigLIP have alike."""
    texts, images = "text_model.embeddings.", "vision_model.embeddings."
    return (
        *_tower_rules("text", "text"),
        *_tower_rules("image", "vision"),
        Rule("text_embed.tokens.weight", texts + "token_embedding.weight"),
        Rule("image_embed.patches.{p}", images + "patch_embedding.{p}"),
        Rule("text_embed.positions.weight", texts + "position_embedding.weight"),
        Rule("image_embed.positions.weight", images + "position_embedding.weight"),
        Rule("text_stack.norm.{p}", "text_model.final_layer_norm.{p}"),
        Rule("image_stack.norm.{p}", "vision_model.post_layernorm.{p}"),
        Extra("{tower}.embeddings.position_ids"),
    )


def _tower_rules(native: str, external: str) -> tuple[Entry, ...]:
    """Return the `KeyMap` entries of the layers of one of the two encoders."""
    return layer_rules(
        native + "_stack.blocks.{i}.",
        external + "_model.encoder.layers.{i}.",
        attn_norm="layer_norm1",
        ff="mlp.fc",
        ff_norm="layer_norm2",
    )


_FIELDS = (
    *size_fields(512, 12, 8, 2048, "", TEXT),
    *size_fields(768, 12, 12, 3072, "image_", VISION),
    *two_tower_fields(49408, 77, patch_size=32, activation="quick_gelu", norm_eps=1e-5),
    Field(
        "eos_id",
        (TEXT + "eos_token_id",),
        49407,
        lambda token: None if token == _POOL_AT_HIGHEST_ID else token,
        lambda token: _POOL_AT_HIGHEST_ID if token is None else token,
    ),
    field("d_embed", "projection_dim", default=512),
)


def _check_duplicate_sections(names: Collection[str], config: Json) -> dict[str, Any]:
    """Check that the duplicate sections of an older config.json agree.

    transformers reads `text_config_dict`, if it is there, in place of `text_config`, with its
    defaults for missing keys, and `vision_config_dict` likewise.
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
        *two_tower_rules(),
        Rule("text_projection.weight", "text_projection.weight"),
        Rule("image_embed.prefix", "vision_model.embeddings.class_embedding", UNSQUEEZE_0),
        Rule("image_norm.{p}", "vision_model.pre_layrnorm.{p}"),  # misspelled in transformers
        Rule("image_projection.weight", "visual_projection.weight"),
    ),
)
ARCHITECTURES = (CLIP,)
