"""Model and tokenizer of a live page, which runs the model on the reader's inputs and edits."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from fourfold.analysis.flops import forward_flops
from fourfold.errors import InputError
from fourfold.explorer.inputs import Example, token_texts
from fourfold.explorer.tokenizer_data import tokenizer_data
from fourfold.explorer.views import View
from fourfold.explorer.weights import PackedModel

MAX_BYTES = 25_000_000  # of the weights in the file; a usual limit of mail
MAX_PRODUCTS = 2_000_000_000  # multiply-adds of a pass, which take a browser about three seconds
LENGTH = 64  # number of tokens of such a pass
TRANSFORM = ("mean", "std", "crop_pct", "crop_mode", "interpolation")  # artifacts of an image model


def live_part(
    view: View, packed: PackedModel, examples: Sequence[Example], *, check: bool = True
) -> dict[str, Any]:
    """Return the part "live" of a page's document: values of JSON, and weights as text.

    Args:
        view: View of the packed model.
        packed: The model.
        examples: Inputs of the page.
        check: Refuse models that are large for a browser.

    Raises:
        InputError: The model is too large, or its tokenizer has a component that the page lacks.
    """
    weights = base64.b64encode(zlib.compress(packed.data, 9)).decode()
    if check:
        length = min(LENGTH, packed.index["max_len"])
        products = forward_flops(packed.model, length).total // 2
        _check(len(weights), MAX_BYTES, "bytes of weights")
        _check(products, MAX_PRODUCTS, "multiply-adds a pass")
    own = _image_values if packed.model.accepts_images else _text_values
    return {"values": {"index": packed.index, **own(view, examples)}, "weights": weights}


def _check(amount: int, limit: int, unit: str) -> None:
    if amount > limit:
        problem = f"needs {amount:,} {unit}, and the limit is {limit:,}; --live-anyway lifts it"
        raise InputError(problem, option="--live")


def _image_values(view: Any, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the classes, the settings of the image transform, and the pixels of the pictures."""
    model = view.model
    return {
        "classes": list(view.class_names(range(model.heads[0].out_features))),
        "transform": {name: model.artifacts[name] for name in TRANSFORM},
        "pictures": [base64.b64encode(one.picture.tobytes()).decode() for one in examples],
    }


def _text_values(view: Any, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the tokenizer, and the special tokens around a text that the model reads."""
    tokenizer = view.reader.tokenizer
    has_masks = not view.model.can_generate
    whole, plain = list(view.from_text("a").ids), tokenizer.encode("a")
    n_special = len(whole) - len(plain)  # at most one of them after the text
    return {
        "tokenizer": tokenizer_data(tokenizer, has_masks=has_masks),
        "before": whole[: max(n_special - 1, 0)],
        "after": whole[len(whole) - min(n_special, 1) :],
        "start": view.start_id,
        "ends": list(view.end_ids),
        "names": token_texts(tokenizer, list(range(tokenizer.vocab_size))),
        "ids": list(examples[0].ids),
    }
