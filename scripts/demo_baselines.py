"""What the simple baselines reach on the test splits of the demo's four tasks."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np

import baselines
from demo_runs import settings
from fourfold.commands.recipe import make_parser, parse, read_recipe


def measure(quick: bool = False) -> dict[str, dict[str, float]]:
    """Of each task the baselines by name, strongest first, with what the table shows of the model.

    Args:
        quick: Count only a little text, and look at a batch: the numbers mean nothing.
    """
    return {
        "translation": copying(quick),
        "causal_lm": next_tokens(quick),
        "masked_lm": hidden_tokens(quick),
        "images": classes(),
    }


def data_of(task: str, quick: bool = False) -> Any:
    """The DataModule that the task's config describes, set up."""
    parser = make_parser("fit")
    data = read_recipe(parser, parse(parser, settings(task, quick))).data
    data.setup()
    return data


def test_batches(data: Any, quick: bool) -> Iterator[Any]:
    return islice(data.test_dataloader(), 1 if quick else None)


def copying(quick: bool) -> dict[str, float]:
    """Exact match."""
    data = data_of("translation", quick)
    right = baselines.copied(data.sources("test"), data.references("test"))
    return {"the source as it is": float(right.mean())}


def next_tokens(quick: bool) -> dict[str, float]:
    """Perplexity per byte, with the model's tokens and within its rows."""
    data = data_of("causal_lm", quick)
    text = data.split("train").stream.ids[: 20_000 if quick else None].tolist()
    batches = list(test_batches(data, quick))
    n_bytes = sum(batch.n_bytes for batch in batches)
    found = {}
    for name, order in (("trigrams", 3), ("unigrams", 1)):
        model = baselines.KneserNey([text], data.vocab_size, order)
        nll = sum(
            baselines.next_token_nll(model, b.ids.numpy(), b.targets.numpy()) for b in batches
        )
        found[name] = math.exp(nll / n_bytes)
    return found


def hidden_tokens(quick: bool) -> dict[str, float]:
    """Perplexity of the same hidden tokens."""
    data = data_of("masked_lm", quick)
    rows = data.split("train").rows
    ends = rows.offsets[: 200 if quick else None].tolist()
    ids = rows.ids.tolist()
    text = [ids[begin:end] for begin, end in pairwise(ends)]
    batches = list(test_batches(data, quick))
    n = sum(int((batch.targets != baselines.IGNORED).sum()) for batch in batches)
    models = {
        "trigrams": baselines.BothSides(text, data.vocab_size, data.tokenizer.mask_id),
        "unigrams": baselines.KneserNey(text, data.vocab_size, order=1),
    }
    found = {}
    for name, model in models.items():
        nll = sum(
            baselines.hidden_token_nll(
                model, b.ids.numpy(), b.targets.numpy(), data.tokenizer.mask_id
            )[0]
            for b in batches
        )
        found[name] = math.exp(nll / n)
    return found


def classes() -> dict[str, float]:
    """Top-1 accuracy, from pixels as they are stored."""
    data = data_of("images")
    train, test = stored_images(data, "train"), stored_images(data, "test")
    return {
        "nearest class mean": baselines.nearest_mean(train, test),
        "most frequent class": baselines.most_frequent(train[1], test[1]),
    }


def stored_images(data: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, P) pixels without augmentation, and (N,) labels."""
    images = data.split(split).images
    pixels = [images.pixels(row, data.n_channels).flatten().numpy() for row in range(len(images))]
    return np.stack(pixels).astype(np.float64), images.labels.numpy()
