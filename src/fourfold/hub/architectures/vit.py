"""ViT and DeiT: config fields and tensor names of transformers."""

from dataclasses import replace

from fourfold.hub.architecture import Architecture, field
from fourfold.hub.architectures.bert import encoder_fields, encoder_rules
from fourfold.hub.keymap import PREFIX_TOKENS, SQUEEZE_0, Extra, KeyMap, Rule
from fourfold.hub.preprocessing import infer_n_classes, label_entries
from fourfold.models import ViT, ViTConfig


def _keymap(prefix: str, prefix_tokens: tuple[str, ...], heads: tuple[str, ...]) -> KeyMap:
    """Return the key map of a ViT or DeiT; all arguments are names in transformers.

    Args:
        prefix: Prefix of the tensor names of the encoder.
        prefix_tokens: Name of the class token, and of the distillation token if there is one.
        heads: Names of the classifiers, one for each prefix token.
    """
    embeddings = prefix + "embeddings."
    return KeyMap(
        Rule("embed.prefix", tuple(embeddings + t for t in prefix_tokens), PREFIX_TOKENS),
        Rule("embed.positions.weight", embeddings + "position_embeddings", SQUEEZE_0),
        Rule("embed.patches.{p}", embeddings + "patch_embeddings.projection.{p}"),
        *encoder_rules(prefix, "attention.attention", "layernorm_before", "layernorm_after"),
        Rule("stack.norm.{p}", prefix + "layernorm.{p}"),
        *(Rule(f"heads.{n}." + "{p}", head + ".{p}") for n, head in enumerate(heads)),
        # A DeiT that was trained without a teacher has one classifier on the class token.
        Rule("heads.0.{p}", "classifier.{p}"),
        Extra(prefix + "pooler.dense.{p}", is_kept=True),
    )


_DEIT_HEADS = ("cls_classifier", "distillation_classifier")
VIT = Architecture(
    model_type="vit",
    hf_class="ViTForImageClassification",
    model_class=ViT,
    config_class=ViTConfig,
    fields=(
        *encoder_fields(dropout=0.0),
        field("image_size", "image_size", default=224),
        field("patch_size", "patch_size", default=16),
        field("n_channels", "num_channels", default=3),
    ),
    implied={
        "norm_placement": "pre",
        "positions": "learned",
        "pool": "cls",
        "distillation": False,
    },
    required={"qkv_bias": True},
    infer=infer_n_classes,
    base_model_prefix="vit.",
    keymap=_keymap("vit.", ("cls_token",), ("classifier",)),
    extra_config=label_entries,
    model_options=lambda names: {
        "n_heads": sum(f"{head}.weight" in names for head in ("classifier", *_DEIT_HEADS))
    },
)

DEIT = replace(
    VIT,
    model_type="deit",
    hf_class="DeiTForImageClassificationWithTeacher",
    implied={**VIT.implied, "distillation": True},
    base_model_prefix="deit.",
    keymap=_keymap("deit.", ("cls_token", "distillation_token"), _DEIT_HEADS),
)
