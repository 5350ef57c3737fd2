"""ResNet baseline with torchvision's layers (He et al. 2015).

ResNets are the baseline of ViT's Figure 4 and the teachers of DeiT. Shapes:
B batch, C channels, D width of the pooled features, K classes.
"""

from dataclasses import dataclass
from typing import Literal, Self

from torch import Tensor, nn

from fourfold.core.config import ModelConfig
from fourfold.core.validation import ImageSize, height_width
from fourfold.layers.base_model import Model
from fourfold.layers.patch_embedding import check_image_shape

Depth = Literal[18, 34, 50, 101, 152]  # He et al. 2015, Table 1


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """Config of a ResNet (He et al. 2015); the defaults are ResNet-18 (11,689,512 parameters).

    Args:
        depth: Number of layers: 18, 34, 50, 101 or 152.
        stem: First layers: imagenet (7x7 convolution with stride 2 and max pooling, which divide
            the side of an image by 4), pooled (3x3 convolution and max pooling, which divide the
            side by 2) or cifar (3x3 convolution, which keeps the side).
        image_size: Height and width of the image in pixels, or the side of a square image.
        n_channels: Number of channels C.
        n_classes: Number of classes K. None takes that of the data.
    """

    depth: Depth = 18
    stem: Literal["imagenet", "pooled", "cifar"] = "imagenet"
    image_size: ImageSize = 224
    n_channels: int = 3
    n_classes: int | None = 1000

    @property
    def d_model(self) -> int:
        """Width D of the pooled features."""
        return 2048 if self.depth >= 50 else 512  # from 50 layers on with bottleneck blocks


class ResNet(Model):
    """torchvision's ResNet, with first layers (stem) that are chosen for the size of the images.

    Source: He et al. 2015. A call of the model takes images (B, C, height, width) and returns the
    logits (B, K).
    """

    accepts_images = True

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        from torchvision.models import resnet  # slow to import

        assert config.n_classes is not None, "n_classes must be known when a model is built"
        self.config = config
        self.image_size = height_width(config.image_size)
        self.net = getattr(resnet, f"resnet{config.depth}")(num_classes=config.n_classes)
        kernel, stride = (7, 2) if config.stem == "imagenet" else (3, 1)
        self.net.conv1 = nn.Conv2d(
            config.n_channels, 64, kernel, stride, padding=kernel // 2, bias=False
        )
        nn.init.kaiming_normal_(self.net.conv1.weight, mode="fan_out", nonlinearity="relu")
        if config.stem == "cifar":
            self.net.maxpool = nn.Identity()

    def train(self, mode: bool = True) -> Self:
        """Set the mode; batch norms with frozen weights (`requires_grad`) stay in eval mode."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
                module.eval()
        return self

    def layer_groups(self) -> list[list[nn.Module]]:
        """Return the stem, the four stages and the rest."""
        net = self.net
        stages = (net.layer1, net.layer2, net.layer3, net.layer4)
        return [[net.conv1, net.bn1], *([stage] for stage in stages), [self]]

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, height, width)."""
        check_image_shape(images, self.config.n_channels, self.image_size)
        return self.net(images)
