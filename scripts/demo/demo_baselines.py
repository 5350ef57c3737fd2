"""Baselines of the demo's four tasks, measured on their test splits."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import ngrams as baselines
import numpy as np
from demo_runs import settings

from fourfold.commands.recipe import make_parser, parse, read_recipe


def measure(quick: bool = False) -> dict[str, dict[str, float]]:
    """Return the test metric of each baseline, by task and name, best baseline first.

    With `quick`, they use little text and one batch, for a functional test.
    """
    return {
        "translation": copying(quick),
        "causal_lm": next_tokens(quick),
        "masked_lm": masked_tokens(quick),
        "images": classes(),
    }


def data_of(task: str, quick: bool = False) -> Any:
    """Create and set up the DataModule of a task's config."""
    parser = make_parser("fit")
    data = read_recipe(parser, parse(parser, settings(task, quick))).data
    data.setup()
    return data


def test_batches(data: Any, quick: bool) -> Iterator[Any]:
    return islice(data.test_dataloader(), 1 if quick else None)


def copying(quick: bool) -> dict[str, float]:
    """Measure the exact match of copying the source."""
    data = data_of("translation", quick)
    correct = baselines.is_copied(data.sources("test"), data.references("test"))
    return {"copied source": float(correct.mean())}


def next_tokens(quick: bool) -> dict[str, float]:
    """Measure perplexity per byte of n-grams, with the tokens and rows of the model."""
    data = data_of("causal_lm", quick)
    text = data.split("train").stream.ids[: 20_000 if quick else None].tolist()
    batches = list(test_batches(data, quick))
    n_bytes = sum(batch.n_bytes for batch in batches)
    results = {}
    for name, order in (("trigrams", 3), ("unigrams", 1)):
        model = baselines.KneserNey([text], data.vocab_size, order)
        nll = sum(
            baselines.next_token_nll(model, b.ids.numpy(), b.targets.numpy()) for b in batches
        )
        results[name] = math.exp(nll / n_bytes)
    return results


def masked_tokens(quick: bool) -> dict[str, float]:
    """Measure perplexity of the masked tokens.

    The trigrams see two tokens on both sides of a masked token, without masked neighbors.
    """
    data = data_of("masked_lm", quick)
    rows = data.split("train").rows
    text = [rows[i].tolist() for i in range(200 if quick else len(rows))]
    batches = list(test_batches(data, quick))
    n = sum(int((batch.targets != baselines.IGNORE_INDEX).sum()) for batch in batches)
    mask_id = data.tokenizer.mask_id
    models = {
        "trigrams on both sides": baselines.BidirectionalTrigrams(text, data.vocab_size, mask_id),
        "unigrams": baselines.KneserNey(text, data.vocab_size, order=1),
    }
    results = {}
    for name, model in models.items():
        nll = sum(
            baselines.masked_token_nll(model, b.ids.numpy(), b.targets.numpy(), mask_id)
            for b in batches
        )
        results[name] = math.exp(nll / n)
    return results


def classes() -> dict[str, float]:
    """Measure top-1 accuracy on unaugmented pixels."""
    data = data_of("images")
    train, test = stored_images(data, "train"), stored_images(data, "test")
    return {
        "nearest class mean": baselines.nearest_mean_accuracy(train, test),
        "most frequent class": baselines.most_frequent_class_accuracy(train[1], test[1]),
    }


def stored_images(data: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (N, P) without augmentation, and labels (N,)."""
    images = data.split(split).images
    pixels = [images.pixels(row, data.n_channels).flatten().numpy() for row in range(len(images))]
    return np.stack(pixels).astype(np.float64), images.labels.numpy()
