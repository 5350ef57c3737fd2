"""ViT and DeiT: config fields and tensor names of transformers."""

from collections.abc import Collection

from fourfold.hub.architecture import Architecture, activation_field, field
from fourfold.hub.keymap import PREFIX_TOKENS, SQUEEZE_0, KeyMap, Rule
from fourfold.hub.preprocessing import N_CLASSES_FIELD, infer_n_classes, label2id_entry
from fourfold.models import ViT, ViTConfig

_FIELDS = (
    field("d_model", "hidden_size", default=768),
    field("n_layers", "num_hidden_layers", default=12),
    field("n_heads", "num_attention_heads", default=12),
    field("d_ff", "intermediate_size", default=3072),
    activation_field("hidden_act", "gelu"),
    field("dropout", "hidden_dropout_prob", default=0.0),
    field("attn_dropout", "attention_probs_dropout_prob", default=0.0),
    field("norm_eps", "layer_norm_eps", default=1e-12),
    field("image_size", "image_size", default=224),
    field("patch_size", "patch_size", default=16),
    field("n_channels", "num_channels", default=3),
    N_CLASSES_FIELD,
)
_IMPLIED = {"norm_placement": "pre", "positions": "learned", "pool": "cls"}


def _keymap(prefix: str, prefix_tokens: tuple[str, ...], heads: tuple[str, ...]) -> KeyMap:
    layer = prefix + "encoder.layer.{i}."
    embeddings = prefix + "embeddings."
    return KeyMap(
        (
            Rule("embed.prefix", tuple(embeddings + t for t in prefix_tokens), PREFIX_TOKENS),
            Rule("embed.positions.weight", embeddings + "position_embeddings", SQUEEZE_0),
            Rule("embed.patches.{p}", embeddings + "patch_embeddings.projection.{p}"),
            Rule("stack.blocks.{i}.attn.q.{p}", layer + "attention.attention.query.{p}"),
            Rule("stack.blocks.{i}.attn.k.{p}", layer + "attention.attention.key.{p}"),
            Rule("stack.blocks.{i}.attn.v.{p}", layer + "attention.attention.value.{p}"),
            Rule("stack.blocks.{i}.attn.out.{p}", layer + "attention.output.dense.{p}"),
            Rule("stack.blocks.{i}.attn_norm.{p}", layer + "layernorm_before.{p}"),
            Rule("stack.blocks.{i}.ff.up.{p}", layer + "intermediate.dense.{p}"),
            Rule("stack.blocks.{i}.ff.down.{p}", layer + "output.dense.{p}"),
            Rule("stack.blocks.{i}.ff_norm.{p}", layer + "layernorm_after.{p}"),
            Rule("stack.norm.{p}", prefix + "layernorm.{p}"),
            *(Rule(f"heads.{n}." + "{p}", head + ".{p}") for n, head in enumerate(heads)),
            # A DeiT that was trained without a teacher has one classifier on the class token.
            Rule("heads.0.{p}", "classifier.{p}"),
            Rule((), prefix + "pooler.dense.{p}"),
        )
    )


def _count_heads(names: Collection[str]) -> int:
    heads = ("classifier", "cls_classifier", "distillation_classifier")
    return sum(f"{head}.weight" in names for head in heads)


VIT = Architecture(
    model_type="vit",
    model_class=ViT,
    config_class=ViTConfig,
    fields=_FIELDS,
    implied={**_IMPLIED, "distillation": False},
    required={"qkv_bias": True},
    infer=infer_n_classes,
    hf_class_for=lambda config: "ViTForImageClassification",
    base_model_prefix="vit.",
    keymap=_keymap("vit.", ("cls_token",), ("classifier",)),
    extra_config=label2id_entry,
    count_heads=_count_heads,
)

DEIT = Architecture(
    model_type="deit",
    model_class=ViT,
    config_class=ViTConfig,
    fields=_FIELDS,
    implied={**_IMPLIED, "distillation": True},
    required={"qkv_bias": True},
    infer=infer_n_classes,
    hf_class_for=lambda config: "DeiTForImageClassificationWithTeacher",
    base_model_prefix="deit.",
    keymap=_keymap(
        "deit.",
        ("cls_token", "distillation_token"),
        ("cls_classifier", "distillation_classifier"),
    ),
    extra_config=label2id_entry,
    count_heads=_count_heads,
)
