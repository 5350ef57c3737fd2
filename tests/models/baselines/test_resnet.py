"""ResNet: equality with torchvision, stems, and invalid configs and images."""

import pytest
import torch
from torchvision.models import resnet18, resnet50

from fourfold.errors import InputError
from fourfold.models import ResNet, ResNetConfig


@pytest.mark.parametrize(("depth", "theirs"), [(18, resnet18), (50, resnet50)])
def test_logits_equal_torchvision(depth: int, theirs) -> None:
    ours = ResNet(ResNetConfig(depth=depth)).eval()
    reference = theirs().eval()
    ours.net.load_state_dict(reference.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(ours(images), reference(images))
    assert ours.config.d_model == ours.net.fc.in_features


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("pooled", 16), ("cifar", 32)])
def test_stem_reduces_the_side_of_the_image(stem: str, side: int) -> None:
    model = ResNet(ResNetConfig(stem=stem, image_size=32, n_channels=1, n_classes=7)).eval()
    seen = []
    model.net.layer1.register_forward_hook(lambda module, args, result: seen.append(args[0].shape))
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert seen == [(2, 64, side, side)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 20}, "depth must be one of 18, 34.* got 20"),
        ({"stem": "patch"}, "stem must be one of imagenet.* got 'patch'"),
        ({"n_classes": 0}, "n_classes must be at least 1"),
        ({"depth": "18"}, "depth must be one of 18, 34.* got '18'"),
    ],
)
def test_invalid_configs_raise(changes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ResNetConfig(**changes)


def test_images_of_another_size_raise() -> None:
    model = ResNet(ResNetConfig(image_size=32, n_classes=2))
    with pytest.raises(InputError, match="images must have the shape"):
        model(torch.randn(1, 3, 16, 16))
