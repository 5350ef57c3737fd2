"""ViT and DeiT as transformers writes them."""

from collections.abc import Collection

from fourfold.hub.architecture import Architecture, activation, field
from fourfold.hub.keymap import TOKENS, WITH_ONE, KeyMap, Rule
from fourfold.hub.labels import N_CLASSES, back, counted
from fourfold.models import ViT, ViTConfig

_FIELDS = (
    field("d_model", "hidden_size", default=768),
    field("n_layers", "num_hidden_layers", default=12),
    field("n_heads", "num_attention_heads", default=12),
    field("d_ff", "intermediate_size", default=3072),
    activation("hidden_act", "gelu"),
    field("dropout", "hidden_dropout_prob", default=0.0),
    field("attn_dropout", "attention_probs_dropout_prob", default=0.0),
    field("norm_eps", "layer_norm_eps", default=1e-12),
    field("image_size", "image_size", default=224),
    field("patch_size", "patch_size", default=16),
    field("n_channels", "num_channels", default=3),
    N_CLASSES,
)
_FIXED = {"norm_placement": "pre", "positions": "learned", "pool": "cls"}


def _keys(root: str, tokens: tuple[str, ...], heads: tuple[str, ...]) -> KeyMap:
    layer = root + "encoder.layer.{i}."
    return KeyMap(
        (
            Rule("embed.prefix", tuple(root + "embeddings." + t for t in tokens), TOKENS),
            Rule("embed.positions.weight", root + "embeddings.position_embeddings", WITH_ONE),
            Rule("embed.patches.{p}", root + "embeddings.patch_embeddings.projection.{p}"),
            Rule("stack.blocks.{i}.attn.q.{p}", layer + "attention.attention.query.{p}"),
            Rule("stack.blocks.{i}.attn.k.{p}", layer + "attention.attention.key.{p}"),
            Rule("stack.blocks.{i}.attn.v.{p}", layer + "attention.attention.value.{p}"),
            Rule("stack.blocks.{i}.attn.out.{p}", layer + "attention.output.dense.{p}"),
            Rule("stack.blocks.{i}.attn_norm.{p}", layer + "layernorm_before.{p}"),
            Rule("stack.blocks.{i}.ff.up.{p}", layer + "intermediate.dense.{p}"),
            Rule("stack.blocks.{i}.ff.down.{p}", layer + "output.dense.{p}"),
            Rule("stack.blocks.{i}.ff_norm.{p}", layer + "layernorm_after.{p}"),
            Rule("stack.norm.{p}", root + "layernorm.{p}"),
            *(Rule(f"heads.{n}." + "{p}", head + ".{p}") for n, head in enumerate(heads)),
            # DeiT without a teacher classifies by its class token alone.
            Rule("heads.0.{p}", "classifier.{p}"),
            Rule((), root + "pooler.dense.{p}"),
        )
    )


def _n_heads(names: Collection[str]) -> int:
    heads = ("classifier", "cls_classifier", "distillation_classifier")
    return sum(f"{head}.weight" in names for head in heads)


VIT = Architecture(
    model_type="vit",
    family=ViT,
    config=ViTConfig,
    fields=_FIELDS,
    fixed={**_FIXED, "distillation": False},
    must={"qkv_bias": True},
    told=counted,
    class_of=lambda config: "ViTForImageClassification",
    prefix="vit.",
    keys=_keys("vit.", ("cls_token",), ("classifier",)),
    written=back,
    heads=_n_heads,
)

DEIT = Architecture(
    model_type="deit",
    family=ViT,
    config=ViTConfig,
    fields=_FIELDS,
    fixed={**_FIXED, "distillation": True},
    must={"qkv_bias": True},
    told=counted,
    class_of=lambda config: "DeiTForImageClassificationWithTeacher",
    prefix="deit.",
    keys=_keys(
        "deit.",
        ("cls_token", "distillation_token"),
        ("cls_classifier", "distillation_classifier"),
    ),
    written=back,
    heads=_n_heads,
)
