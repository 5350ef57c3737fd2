"""Family of baselines: convolutional and ladder models, and the ResNet of torchvision."""

from fourfold.families import Family

FAMILY = Family(
    name="baselines",
    models={
        **dict.fromkeys(("ConvolutionalLM", "ConvolutionalLMConfig"), f"{__package__}.convolution"),
        **dict.fromkeys(
            ("LadderClassifier", "LadderClassifierConfig", "LadderLM", "LadderLMConfig"),
            f"{__package__}.ladder",
        ),
        **dict.fromkeys(("ResNet", "ResNetConfig"), f"{__package__}.resnet"),
    },
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
