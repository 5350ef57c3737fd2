"""Family of Vision Transformers: ViT, DeiT, DINOv2, DINOv3 and masked autoencoders."""

from fourfold.families import BASE, LARGE, Family, with_configs

TINY = {"d_model": 192, "n_layers": 12, "n_heads": 3, "d_ff": 768}
SMALL = {"d_model": 384, "n_layers": 12, "n_heads": 6, "d_ff": 1536}
HUGE = {"d_model": 1280, "n_layers": 32, "n_heads": 16, "d_ff": 5120}
# Dosovitskiy et al. 2020, Table 3; Touvron et al. 2020, Table 9.
VIT = {"dropout": 0.1, "ff_dropout": 0.1}
DEIT = {"drop_path": 0.1, "init": "bert"}
# Oquab et al. 2023, without registers; Siméoni et al. 2025.
DINOV2 = {"image_size": 518, "patch_size": 14, "layer_scale": 1e-5, "pool": "cls_mean"}
DINOV3 = {
    "norm_eps": 1e-5,
    "layer_scale": 1e-5,
    "pool": "cls_mean",
    "n_registers": 4,
    "positions": "rotary2d",
    "rope_theta": 100.0,
    "key_bias": False,
}

FAMILY = Family(
    name="vit",
    models=with_configs(
        __package__,
        {"ViT": "model", "MaskedAutoencoder": "masked_autoencoder", "Segmenter": "segmenter"},
    ),
    tasks={
        "ImageClassification": f"{__package__}.task",
        "MaskedImageModeling": f"{__package__}.masked_image_task",
        "SemanticSegmentation": f"{__package__}.segmentation_task",
    },
    sizes={
        "vit_tiny_patch16_224": ("ViT", {**TINY, **VIT}),
        "vit_small_patch16_224": ("ViT", {**SMALL, **VIT}),
        "vit_base_patch16_224": ("ViT", {**BASE, **VIT}),
        "vit_base_patch32_224": ("ViT", {**BASE, **VIT, "patch_size": 32}),
        "vit_large_patch16_224": ("ViT", {**LARGE, **VIT}),
        "vit_large_patch32_224": ("ViT", {**LARGE, **VIT, "patch_size": 32}),
        "vit_huge_patch14_224": ("ViT", {**HUGE, **VIT, "patch_size": 14}),
        "deit_tiny_patch16_224": ("ViT", {**TINY, **DEIT}),
        "deit_small_patch16_224": ("ViT", {**SMALL, **DEIT}),
        "deit_base_patch16_224": ("ViT", {**BASE, **DEIT}),
        "deit_tiny_distilled_patch16_224": ("ViT", {**TINY, **DEIT, "distillation": True}),
        "deit_small_distilled_patch16_224": ("ViT", {**SMALL, **DEIT, "distillation": True}),
        "deit_base_distilled_patch16_224": ("ViT", {**BASE, **DEIT, "distillation": True}),
        "vit_small_patch14_dinov2": ("ViT", {**SMALL, **DINOV2}),
        "vit_base_patch14_dinov2": ("ViT", {**BASE, **DINOV2}),
        "vit_small_patch16_dinov3": ("ViT", {**SMALL, **DINOV3}),
        "vit_base_patch16_dinov3": ("ViT", {**BASE, **DINOV3}),
    },
    architectures=dict.fromkeys(
        ("vit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit"), f"{__package__}.hub"
    ),
    formats=(f"{__package__}.hub_timm",),
    graphs={"ViT": "fourfold.hub.graphs:image_graphs"},
    views={
        "ViT": "fourfold.explorer.image_views:ImageView",
        "MaskedAutoencoder": "fourfold.explorer.image_views:MaskedImageView",
    },
)
