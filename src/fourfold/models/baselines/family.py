"""Family of baselines: convolutional and ladder models, and the ResNet of torchvision."""

from fourfold.families import Family, with_configs

FAMILY = Family(
    name="baselines",
    models=with_configs(
        __package__,
        {
            "ConvolutionalLM": "convolution",
            **dict.fromkeys(("LadderClassifier", "LadderLM"), "ladder"),
            "ResNet": "resnet",
        },
    ),
    tasks=dict.fromkeys(
        (
            "ConvolutionalClassification",
            "ConvolutionalLanguageModeling",
            "LadderLanguageModeling",
            "LadderSequenceClassification",
        ),
        f"{__package__}.task",
    ),
    sizes={f"resnet{depth}": ("ResNet", {"depth": depth}) for depth in (18, 34, 50, 101, 152)},
    graphs={"ResNet": "fourfold.hub.graphs:image_graphs"},
)
