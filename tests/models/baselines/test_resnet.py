"""The rival: torchvision's network, and what its stems make of an image."""

import pytest
import torch
from torchvision.models import resnet18, resnet50

from fourfold.core.errors import InputError
from fourfold.models import ResNet, ResNetConfig


@pytest.mark.parametrize(("depth", "theirs"), [(18, resnet18), (50, resnet50)])
def test_it_is_torchvisions_network(depth: int, theirs) -> None:
    ours, reference = ResNet(ResNetConfig(depth=depth)).eval(), theirs().eval()
    ours.net.load_state_dict(reference.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(ours(images), reference(images))
    assert ours.config.d_model == ours.net.fc.in_features


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("pooled", 16), ("cifar", 32)])
def test_a_stem_leaves_its_share_of_the_side(stem: str, side: int) -> None:
    model = ResNet(ResNetConfig(stem=stem, image_size=32, n_channels=1, n_classes=7)).eval()
    seen = []
    model.net.layer1.register_forward_hook(lambda module, args, result: seen.append(args[0].shape))
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert seen == [(2, 64, side, side)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"depth": 20}, "depth is 20, but must be one of 18, 34"),
        ({"stem": "patch"}, "stem is 'patch', but must be one of imagenet"),
        ({"n_classes": 0}, "n_classes is 0"),
        ({"depth": "18"}, "depth is '18', but must be of the kind int"),
    ],
)
def test_what_no_network_can_have(changes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ResNetConfig(**changes)


def test_images_of_another_size_are_refused() -> None:
    model = ResNet(ResNetConfig(image_size=32, n_classes=2))
    with pytest.raises(InputError, match="but the model takes"):
        model(torch.randn(1, 3, 16, 16))
