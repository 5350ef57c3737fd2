"""CLIP as transformers writes it: two towers, each with a section of config.json."""

from collections.abc import Collection, Iterator
from typing import Any

from fourfold.core.errors import InputError
from fourfold.hub.architecture import Architecture, Field, activation, field
from fourfold.hub.keymap import AS_ROW, Ignored, KeyMap, Line, Rule
from fourfold.models import CLIP as Model
from fourfold.models import CLIPConfig

_TEXT, _IMAGE = "text_config.", "vision_config."
# Released before there was a rule: it means the highest number of a text, OpenAI's own rule.
_HIGHEST = 2


def _both(ours: str, theirs: str, default: Any) -> Field:
    """What the towers share here, so that both sections must say the same."""
    return field(ours, _TEXT + theirs, _IMAGE + theirs, default=default)


def _tower(ours: str, section: str, width: int, heads: int) -> tuple[Field, ...]:
    return (
        field(ours + "d_model", section + "hidden_size", default=width),
        field(ours + "n_layers", section + "num_hidden_layers", default=12),
        field(ours + "n_heads", section + "num_attention_heads", default=heads),
        field(ours + "d_ff", section + "intermediate_size", default=4 * width),
    )


def _layers(ours: str, theirs: str) -> Iterator[Line]:
    block, layer = ours + "_stack.blocks.{i}.", theirs + "_model.encoder.layers.{i}."
    for part in "qkv":
        yield Rule(block + f"attn.{part}." + "{p}", layer + f"self_attn.{part}_proj." + "{p}")
    yield Rule(block + "attn.out.{p}", layer + "self_attn.out_proj.{p}")
    yield Rule(block + "attn_norm.{p}", layer + "layer_norm1.{p}")
    yield Rule(block + "ff.up.{p}", layer + "mlp.fc1.{p}")
    yield Rule(block + "ff.down.{p}", layer + "mlp.fc2.{p}")
    yield Rule(block + "ff_norm.{p}", layer + "layer_norm2.{p}")
    yield Ignored(theirs + "_model.embeddings.position_ids")


_FIELDS = (
    *_tower("", _TEXT, 512, 8),
    *_tower("image_", _IMAGE, 768, 12),
    field("vocab_size", _TEXT + "vocab_size", default=49408),
    field("max_len", _TEXT + "max_position_embeddings", default=77),
    Field(
        "eos_id",
        (_TEXT + "eos_token_id",),
        49407,
        lambda theirs: None if theirs == _HIGHEST else theirs,
        lambda ours: _HIGHEST if ours is None else ours,
    ),
    field("image_size", _IMAGE + "image_size", default=224),
    field("patch_size", _IMAGE + "patch_size", default=32),
    field("n_channels", _IMAGE + "num_channels", default=3),
    field("d_embed", "projection_dim", default=512),
    activation((_TEXT + "hidden_act", _IMAGE + "hidden_act"), "quick_gelu"),
    _both("norm_eps", "layer_norm_eps", 1e-5),
    _both("attn_dropout", "attention_dropout", 0.0),
)


def _sections_agree(names: Collection[str], config: Any) -> dict[str, Any]:
    """Old files tell a tower twice; transformers goes by the second telling and its defaults."""
    for entry in _FIELDS:
        for section, key in (name.split(".") for name in entry.theirs if "." in name):
            tellings = config.get(section) or {}, config.get(section + "_dict")
            if tellings[1]:
                here, there = (telling.get(key, entry.default) for telling in tellings)
                if here != there and entry.read(here) is not None:  # OpenAI's rule for eos_id
                    raise InputError(f"{section} and {section}_dict differ: {key} {here}, {there}")
    return {}


CLIP = Architecture(
    model_type="clip",
    family=Model,
    config=CLIPConfig,
    fields=_FIELDS,
    fixed={"norm_placement": "pre", "dropout": 0.0},
    must={_TEXT + "model_type": "clip_text_model", _IMAGE + "model_type": "clip_vision_model"},
    told=_sections_agree,
    class_of=lambda config: "CLIPModel",
    prefix="",
    # A tower loaded alone looks for the width of the shared space in its own section.
    written=lambda config: {part + "projection_dim": config.d_embed for part in (_TEXT, _IMAGE)},
    keys=KeyMap(
        (
            Rule("log_scale", "logit_scale"),
            Rule("text_embed.tokens.weight", "text_model.embeddings.token_embedding.weight"),
            Rule("text_embed.positions.weight", "text_model.embeddings.position_embedding.weight"),
            *_layers("text", "text"),
            Rule("text_stack.norm.{p}", "text_model.final_layer_norm.{p}"),
            Rule("text_projection.weight", "text_projection.weight"),
            Rule("image_embed.prefix", "vision_model.embeddings.class_embedding", AS_ROW),
            Rule("image_embed.patches.weight", "vision_model.embeddings.patch_embedding.weight"),
            Rule(
                "image_embed.positions.weight", "vision_model.embeddings.position_embedding.weight"
            ),
            Rule("image_norm.{p}", "vision_model.pre_layrnorm.{p}"),  # spelt so in every checkpoint
            *_layers("image", "vision"),
            Rule("image_stack.norm.{p}", "vision_model.post_layernorm.{p}"),
            Rule("image_projection.weight", "visual_projection.weight"),
        )
    ),
)  # fmt: skip
