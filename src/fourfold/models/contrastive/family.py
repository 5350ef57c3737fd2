"""Family of models that compare images and texts: CLIP and SigLIP."""

from fourfold.families import Family, with_configs

BASE = {"d_model": 768, "n_heads": 12, "d_ff": 3072}
LARGE = {"image_d_model": 1024, "image_n_layers": 24, "image_n_heads": 16, "image_d_ff": 4096}

FAMILY = Family(
    name="contrastive",
    models=with_configs(__package__, {"CLIP": "clip", "SigLIP": "siglip"}),
    tasks=dict.fromkeys(
        ("ContrastiveLearning", "SigmoidContrastiveLearning"), f"{__package__}.task"
    ),
    sizes={
        "siglip-base-patch16-224": ("SigLIP", {}),
        "clip-vit-base-patch32": ("CLIP", {}),
        "clip-vit-base-patch16": ("CLIP", {"patch_size": 16}),
        "clip-vit-large-patch14": ("CLIP", {**BASE, **LARGE, "patch_size": 14, "d_embed": 768}),
    },
    architectures={"clip": f"{__package__}.hub", "siglip": f"{__package__}.hub_siglip"},
    token_templates={"SigLIP": ("$A {eos}", None), "CLIP": ("{bos} $A {eos}", None)},
    graphs={"CLIP": "fourfold.hub.graphs:clip_graphs"},
    views={"CLIP": "fourfold.explorer.image_views:ImageTextView"},
)
