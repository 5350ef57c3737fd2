"""Classify images by frozen features of a model: k-NN and multinomial logistic regression.

The feature of an image is its class token, or without one the mean of its patches (--pool), after
the evaluation transform of the model. k-NN weights the 20 training images of the highest cosine
similarity s by exp(s / 0.07), as DINO. Logistic regression has standardized features and a penalty
||W||^2 / (2 C), as in scikit-learn; C is chosen on a fifth of the training images, and the
regression is then fitted to all of them. The accuracies are those of the test split.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.commands import metrics_report, option_parser
from fourfold.commands.infer.devices import load_model
from fourfold.commands.infer.evaluate import show
from fourfold.core.validation import check_positive
from fourfold.data import ImageData
from fourfold.data.vision.eval_transforms import TransformConfig, stored_transform
from fourfold.data.vision.image_stores import ImageStore, stratified_split
from fourfold.errors import InputError, errors_in
from fourfold.layers.patch_embedding import PatchEmbedding

STRENGTHS = [10.0**k for k in range(-5, 4)]  # values of C


def main(argv: Sequence[str]) -> int:
    """Print the accuracies of each checkpoint, write metrics.json, and return 0.

    Raises:
        InputError: An option, a checkpoint or a file is invalid.
    """
    parser = option_parser.OptionParser(prog="fourfold evaluate features", description=__doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="digits, a folder or a file, as data.source of ImageData")
    add("--checkpoint", required=True, action="append", metavar="PATH", help="as for `evaluate`")
    parser.add_loading_options(64)
    add("--pool", choices=("cls", "mean"), help="class token or mean of the patches")
    add("--out", metavar="DIR", help="write metrics.json into this folder")
    options = parser.parse_args(argv[2:])
    check_positive("--batch-size", options.batch_size)
    # The models bring their transforms; without a size, `data` would require square images.
    data = ImageData(options.source, transform=TransformConfig(size=1))
    data.setup()
    stores = [data.split_sources[name] for name in ("train", "test")]
    labels, test_labels = (store.labels for store in stores)
    _, chosen = stratified_split(stores[0], 0.2, 0)
    held_out = torch.from_numpy(np.isin(stores[0].rows, chosen.rows))
    rows: list[dict[str, Any]] = []
    for path in options.checkpoint:
        place, model, precision = load_model(path, options)
        with errors_in(place), precision:
            x, test = (embed(model, store, options.pool, options.batch_size) for store in stores)

        def score(c: float, x: Tensor = x) -> float:
            fitted = logistic_regression(x[~held_out], labels[~held_out], x[held_out], c)
            return _accuracy(fitted, labels[held_out])

        c = max(STRENGTHS, key=score)
        scores = {"k-NN": knn(x, labels, test), "logistic": logistic_regression(x, labels, test, c)}
        found = {name: _accuracy(x, test_labels) for name, x in scores.items()}
        rows.append({"": path, **found, "C": c})
    show({"all": rows})
    if options.out is not None:
        command = {"command": shlex.join(["fourfold", *argv])}
        metrics_report.write_metrics(Path(options.out, "metrics.json"), {"models": rows}, command)
    return 0


@torch.inference_mode()
def embed(model: Any, images: ImageStore, pool: str | None, batch_size: int = 64) -> Tensor:
    """Compute the features (N, D) of N images in fp64, on the CPU."""
    if not isinstance(getattr(model, "embed", None), PatchEmbedding):
        message = f"must be a ViT or a masked autoencoder, got a {type(model).__name__}"
        raise InputError(message, option="--checkpoint")
    transform, prefix = stored_transform(model.artifacts), model.embed.prefix
    n_prefix = 0 if prefix is None else len(prefix)
    if pool == "cls" and not n_prefix:
        raise InputError("must be mean for a model without a class token", option="--pool")
    features = []
    for rows in torch.arange(len(images)).split(batch_size):
        pixels = [images.pixels(row, transform.n_channels) for row in rows.tolist()]
        h = model.encode(transform(pixels).to(model.device, model.dtype))
        first = n_prefix and (pool or getattr(model.config, "pool", "cls")) != "mean"
        features.append((h[:, 0] if first else h[:, n_prefix:].mean(1)).double().cpu())
    return torch.cat(features)


def knn(
    train: Tensor, labels: Tensor, test: Tensor, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Return the votes (M, K) for M test images of the k nearest of N training images.

    Source: Caron et al. 2021 (DINO), appendix F.1, after Wu et al. 2018.
    """
    train, n_classes = F.normalize(train, dim=-1), int(labels.max()) + 1
    votes = []
    for chunk in F.normalize(test, dim=-1).split(1024):
        similarity, nearest = (chunk @ train.T).topk(min(k, len(train)))
        weights = ((similarity - 1) / temperature).exp()  # a common factor cannot overflow
        total = weights.new_zeros(len(chunk), n_classes)
        votes.append(total.scatter_add_(1, labels[nearest], weights))
    return torch.cat(votes)


def logistic_regression(train: Tensor, labels: Tensor, test: Tensor, c: float) -> Tensor:
    """Fit a multinomial logistic regression by L-BFGS, and return the logits (M, K) of `test`.

    The objective is the summed cross-entropy plus ||W||^2 / (2 C), without a penalty of the biases.
    """
    mean, std = train.mean(0), train.std(0, correction=0).clamp(min=1e-12)
    train, test = (train - mean) / std, (test - mean) / std
    layer = torch.nn.Linear(train.shape[1], int(labels.max()) + 1, dtype=train.dtype)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    options: Any = {"tolerance_grad": 1e-7, "tolerance_change": 1e-13, "max_iter": 500}
    optimizer = torch.optim.LBFGS(layer.parameters(), **options, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = layer.weight.square().sum() / (2 * c * len(train))
        total = F.cross_entropy(layer(train), labels) + penalty
        total.backward()
        return total

    optimizer.step(loss)
    return layer(test).detach()


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return 100 * (scores.argmax(1) == labels).double().mean().item()
