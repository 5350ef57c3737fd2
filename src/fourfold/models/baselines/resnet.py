"""The residual network that a Vision Transformer is measured against: torchvision's.

It is no specialisation of the block; it is here as the rival of ViT's Figure 4 and the teacher of
DeiT. Shapes: B batch, C channels, K classes.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from fourfold.core.config import ModelConfig, check_positive, check_types, check_word
from fourfold.core.errors import InputError

# Blocks of each of the four stages, and whether these are bottlenecks (He et al. 2015, Table 1).
DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
STEMS = ("imagenet", "pooled", "cifar")


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """A residual network; the defaults are ResNet-18 at 224 (11,689,512 parameters).

    Args:
        depth: 18, 34, 50, 101 or 152.
        stem: imagenet (7x7 by steps of 2, then a pool of 3x3 by steps of 2), pooled (3x3, then that
            pool) or cifar (3x3 alone): it leaves 1/4, 1/2 or all of an image's side.
        image_size: Side of the square image in pixels.
        n_channels: C.
        n_classes: K; None in a run's config means: the data's.

    Raises:
        InputError: A word or size that no network can have.
    """

    depth: int = 18
    stem: str = "imagenet"
    image_size: int = 224
    n_channels: int = 3
    n_classes: int | None = 1000

    def __post_init__(self) -> None:
        check_types(self)
        if self.depth not in DEPTHS:
            known = ", ".join(map(str, DEPTHS))
            raise InputError(f"depth is {self.depth}, but must be one of {known}")
        check_word("stem", self.stem, STEMS)
        for field in ("image_size", "n_channels", "n_classes"):
            check_positive(field, getattr(self, field))

    @property
    def d_model(self) -> int:
        """Width of what is classified."""
        return 2048 if DEPTHS[self.depth][1] else 512


class ResNet(nn.Module):
    """Classifies an image by torchvision's ResNet with the first layer that the images are for."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        from torchvision.models import resnet

        assert config.n_classes is not None, "the classes are known once a model is built"
        self.config = config
        blocks, is_bottleneck = DEPTHS[config.depth]
        kind = resnet.Bottleneck if is_bottleneck else resnet.BasicBlock
        self.net = resnet.ResNet(kind, list(blocks), num_classes=config.n_classes)
        kernel, stride = (7, 2) if config.stem == "imagenet" else (3, 1)
        self.net.conv1 = nn.Conv2d(
            config.n_channels, 64, kernel, stride, padding=kernel // 2, bias=False
        )
        nn.init.kaiming_normal_(self.net.conv1.weight, mode="fan_out", nonlinearity="relu")
        if config.stem == "cifar":
            self.net.maxpool = nn.Identity()

    def train(self, mode: bool = True) -> Self:
        """As of any module, but a norm that is frozen keeps the statistics it came with."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
                module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, side, side) to logits (B, K).

        Raises:
            InputError: Images of another size than the config's.
        """
        side = self.config.image_size
        want = (self.config.n_channels, side, side)
        if tuple(images.shape[1:]) != want:
            raise InputError(f"images are {tuple(images.shape[1:])}, but the model takes {want}")
        logits: Tensor = self.net(images)
        return logits
