"""Views, which run the models of one family and build the data that a page shows.

This module holds the base class and the views of image models. The data of one example are a row of
the page's document, a dictionary of JSON values (see `fourfold.explorer.document`).

Shapes: L layers, T tokens, K classes, V vocabulary, C channels, H height, W width.
"""

import base64
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.data.vision.features import input_transform
from fourfold.data.vision.transforms import eval_transform
from fourfold.errors import InputError
from fourfold.explorer.inputs import (
    Example,
    special_positions,
    token_texts,
    tokenizer_of,
    word_numbers,
)
from fourfold.explorer.maps import Collector, Kind
from fourfold.generation import beam_search
from fourfold.hub.preprocessing import default_class_names
from fourfold.models.analysis.attention_flow import relevance
from fourfold.models.analysis.attention_maps import Array
from fourfold.models.analysis.attention_statistics import patch_distances
from fourfold.models.analysis.hidden_states import logit_lens, text_stack
from fourfold.models.base import Model

N_ALTERNATIVES = 10  # most probable tokens that a step lists
N_CLASSES = 5  # most probable classes that a row lists
IMAGE_SIDE = 256  # longer side of an image on the page, in pixels
IMAGE_BYTES = 60_000  # largest size of an image on the page
FULL_PATCHES = 80  # tokens of a ViT up to which the maps of all examples are stored completely

Row = dict[str, Any]


class View:
    """Base class of views, which run the models of one family and build the data of a page.

    `from_text`, `from_image` or `from_batch` converts inputs to examples. `complete` adds the
    tokens that the model generates to an example. `row` runs the model on the result, and returns
    the data that the page shows for the example.

    Args:
        model: The model, in eval mode.
        truncate: Shorten texts that are too long for the model.
        generate: Number of tokens that a causal LM generates.

    Attributes:
        family: Name of the model family, such as "causal_lm", which selects the layout of the page.
    """

    family: ClassVar[str]

    def __init__(self, model: Model, truncate: bool = False, generate: int = 20) -> None:
        self.model: Any = model
        self.truncate = truncate
        self.n_new = generate
        self.device = next(model.parameters()).device

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text to an `Example`, an input of the page.

        Args:
            text: Input of the model, or source text of an encoder-decoder.
            target: Target text of an encoder-decoder; None if the model generates the text.

        Raises:
            InputError: The model reads no texts, or the text is too long.
        """
        raise InputError("must not be given: the model reads no texts", option="--text")

    def from_image(self, path: str) -> Example:
        """Convert an image file to an `Example`, an input of the page.

        Raises:
            InputError: The model reads no images, or the file is no image.
        """
        raise InputError("must not be given: the model reads no images", option="--image")

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a batch of test data to inputs of the page.

        Args:
            batch: Batch of the DataModule (see `fourfold.data.loading.batches`).
            dataset: Dataset of the test split.
        """
        raise NotImplementedError

    def complete(self, example: Example) -> Example:
        """Return a copy of an example with the tokens that the model generates as `target`.

        The base class returns the example itself, because most models generate nothing.
        """
        return example

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on an example, and return the data that the page shows for the example.

        Args:
            example: Result of `complete`.
            collector: Collector to which the attention maps and the curves are added.
            is_first: True if the example is the first one of the page.

        Returns:
            A row of the page's document, without its fields `maps` and `curves`. This is a
            dictionary with the title, the tokens and the predictions.
        """
        raise NotImplementedError

    def tensor(self, ids: Any) -> Tensor:
        """Return T integers as an int64 tensor (1, T) on the device of the model."""
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)

    def tokens(self, **lists: Any) -> Row:
        """Return the fields of the page's data that describe the tokens of an example.

        Args:
            **lists: Token ids of each token list by the name of the list, such as `source`.

        Returns:
            A dictionary with three keys. Each value is a dictionary by the name of the list:
            `tokens` holds the text of each token, `words` the index of each token's word, and
            `special` the positions of special tokens.
        """
        tokenizer = tokenizer_of(self.model)
        return {
            "tokens": {name: token_texts(tokenizer, ids) for name, ids in lists.items()},
            "words": {name: word_numbers(tokenizer, ids) for name, ids in lists.items()},
            "special": {name: special_positions(tokenizer, ids) for name, ids in lists.items()},
        }

    def steps(
        self,
        logits: Tensor,
        ids: list[int],
        positions: dict[int, int],
        ranks: Tensor | None,
        kind: str,
        **fields: Any,
    ) -> list[Row]:
        """Return the field `steps` of the page's data, the model's predictions for some tokens.

        A token of `ids` that the model has to predict is called a target here.

        Args:
            logits: Logits (T, V).
            ids: Token ids of the sequence, which contains the targets.
            positions: Dictionary with an entry for each target. The key is the index of the target
                in `ids`. The value is the index of the row of `logits` that predicts the target.
            ranks: Rank (L, T) of the target after each layer (logit lens), where 0 is the most
                probable token. Column t belongs to row t of `logits`. None omits the ranks.
            kind: "generate" or "masked".
            **fields: Further fields of each step.

        Returns:
            A dictionary for each target, with the probability of the target, the entropy of the
            distribution in nats, the most probable tokens and the ranks.
        """
        tokenizer, steps = tokenizer_of(self.model), []
        for token, query in positions.items():
            p = logits[query].float().softmax(-1)
            values, best = p.topk(min(N_ALTERNATIVES, len(p)))
            names = token_texts(tokenizer, best.tolist())
            step = {
                "kind": kind,
                "token": token,
                "query": query,
                "chosen": token_texts(tokenizer, [ids[token]])[0],
                "probability": _short(float(p[ids[token]])),
                "entropy": _short(float(torch.special.entr(p).sum())),
                "top": [[n, _short(v)] for n, v in zip(names, values.tolist(), strict=True)],
                "lens": [] if ranks is None else ranks[:, query].tolist(),
            }
            steps.append({**step, **fields})
        return steps

    def run(
        self,
        collector: Collector,
        kinds: dict[str, Kind],
        chosen: Tensor,
        *inputs: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model once on one sequence, and collect its attention maps.

        Args:
            collector: Collector to which the maps and curves are added.
            kinds: Options of each kind of attention to collect, by the name of the kind.
            chosen: Token ids (1, T) whose ranks are computed. The rank of token t is its rank in
                row t of the logits.
            *inputs: Positional arguments of the model.
            **options: Keyword arguments of the model.

        Returns:
            The logits (T, V), and the rank (L, T) of each token in `chosen` after each layer (logit
            lens), where 0 is the most probable token. The ranks are None if the head of the model
            does not read a stack of transformer blocks.
        """
        outputs: list[Tensor] = []
        ranks: list[Tensor] = []

        def forward() -> None:
            outputs.append(self.model(*inputs, **options))

        def look() -> None:
            if text_stack(self.model) is None:
                forward()
            else:
                ranks.append(logit_lens(self.model, forward, chosen))

        collector.collect(self.model, look, kinds)
        return outputs[0][0], ranks[0][:, 0] if ranks else None

    def classes(self, logits: Tensor) -> list[list[Any]]:
        """Return the field `classes` of the page's data, the most probable classes.

        Args:
            logits: Logits (K,).

        Returns:
            List of at most `N_CLASSES` (5) pairs [name of the class, probability], the most
            probable class first. The list is empty for regression (K = 1).
        """
        if len(logits) < 2:
            return []
        names = self.model.artifacts.get("class_names") or default_class_names(len(logits))
        values, best = logits.detach().float().softmax(-1).topk(min(N_CLASSES, len(logits)))
        return [[names[i], _short(p)] for i, p in zip(best.tolist(), values.tolist(), strict=True)]

    def search(self, source: Tensor, **options: Any) -> list[int]:
        """Generate a target text by beam search with the options stored in the checkpoint.

        Args:
            source: Source tokens (1, S), or an image (1, C, H, W).
            **options: Further arguments of `beam_search`.

        Returns:
            Token ids of the best hypothesis without the start token, up to the end token.
        """
        defaults = self.model.generation_defaults
        names = {"num_beams": "beam", "length_penalty": "length_penalty"}
        names["length_penalty_type"] = "length_penalty_type"
        given = {to: getattr(defaults, name, None) for name, to in names.items()}
        given = {"beam": 1} | {name: x for name, x in given.items() if x is not None}
        ids = beam_search(self.model, source, **given, **options)[0][0].flatten().tolist()[1:]
        eos = tokenizer_of(self.model).eos_id
        return ids[: ids.index(eos) + 1] if eos in ids else ids

    @property
    def start_id(self) -> int:
        """Id of the token that the decoder reads first."""
        found = getattr(self.model.generation_defaults, "bos_id", None)
        return tokenizer_of(self.model).bos_id if found is None else int(found)


class ImageView(View):
    """View that runs a Vision Transformer on an image.

    The page shows the attention between patches, the attention rollout, the relevance of the
    patches for the predicted class, and the most probable classes.
    """

    family = "vit"

    def from_image(self, path: str) -> Example:
        """Convert an image file to an `Example`, an input of the page.

        The page displays the image after the resizing and cropping of evaluation.
        """
        image = input_transform(self.model.artifacts)(path)
        seen = eval_transform(self.model.artifacts)(path)
        return Example(Path(path).name, image=image, picture=pixels(seen, self.model.artifacts))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the images of an `ImageBatch` to inputs of the page.

        Args:
            batch: The batch.
            dataset: Dataset of the batch, from which the displayed pixels are read.
        """
        examples = []
        for i, row in enumerate(batch.rows.tolist()):
            stored = dataset.images.pixels(row, dataset.transform.n_channels)
            seen = dataset.transform([stored], 0, np.array([row]))[0]
            picture = pixels(seen, self.model.artifacts)
            examples.append(Example(f"test image {row}", image=batch.images[i], picture=picture))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on an image, and return the data for the page.

        The field `classes` holds the most probable classes. The attention maps are stored
        completely for the first example and for images of at most `FULL_PATCHES` (80) tokens. For
        other examples, only the attention of the class token is stored.
        """
        assert example.image is not None
        side = self.model.config.image_size // self.model.config.patch_size
        images = self._batch(example.image)
        n_prefix = self.model.n_prefix
        n_tokens = n_prefix + side * side
        names = patch_names(side, side, n_prefix)
        whole = is_first or n_tokens <= FULL_PATCHES
        kind = Kind(
            "patches" if whole else "class",
            "patches",
            distances=patch_distances(side, side, n_prefix),
            first_queries=None if whole else 1,
            rollout="rollout",
        )
        outputs: list[Tensor] = []
        collector.collect(self.model, lambda: outputs.append(self.model(images)), {"self": kind})
        best = int(outputs[0][0].argmax())
        total = relevance(self.model, lambda: self.model(images)[:, best])[0]
        scores = (total[:1] if n_prefix else total.mean(0, keepdim=True)).cpu().numpy()
        scores = scores - np.eye(1, n_tokens, dtype=scores.dtype) * bool(n_prefix)
        collector.add("relevance", scores, "class", "patches", range=[0.0, float(scores.max())])
        positions = getattr(self.model.embed, "positions", None)
        if is_first and positions is not None and len(positions.weight) == n_tokens:
            unit = torch.nn.functional.normalize(positions.weight.detach().float(), dim=-1)
            same = (unit @ unit.mT).clamp(-1, 1).cpu().numpy()
            collector.add("positions", same, "patches", "patches", range=[-1.0, 1.0])
        pooled = "[CLS]" if n_prefix else "mean of the patches"
        return {
            "title": example.title,
            "tokens": {"patches": names, "class": [pooled]},
            "image": image_entry(example.picture, [side, side], n_prefix),
            "classes": self.classes(outputs[0][0]),
        }

    def _batch(self, image: Tensor) -> Tensor:
        return image[None].to(self.device, next(self.model.parameters()).dtype)


class CaptionView(ImageView):
    """View that runs a captioning model on an image and on the caption that it generates.

    The page shows the attention of each word to the image.
    """

    family = "captioning"

    def complete(self, example: Example) -> Example:
        """Return a copy of an example whose `target` is a caption that beam search generates."""
        assert example.image is not None
        limits = (getattr(self.model.config, "max_len", None), self.model.artifacts.get("max_len"))
        longest = min([51, *(limit for limit in limits if limit is not None)]) - 1
        with torch.inference_mode():
            target = self.search(self._batch(example.image), bos_id=self.start_id, max_len=longest)
        text = tokenizer_of(self.model).decode(target)
        return replace(example, target=target, title=f"{example.title}: {text}")

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model once on image and caption, and return the data for the page.

        The data hold the attention to the image for each token of the caption, and the distribution
        that the model predicts for the token.
        """
        assert example.image is not None
        target = list(example.target or [])
        inputs = [self.start_id, *target[:-1]]
        encoder = getattr(self.model.config, "encoder", None)
        is_recurrent = self.model.is_recurrent
        n_encoded = 0 if encoder is None else encoder.n_prefix
        n_prefix = 0 if is_recurrent else n_encoded
        grid = list(example.image.shape[1:])
        if encoder is not None:
            grid = [encoder.image_size // encoder.patch_size] * 2
        kinds = {
            "encoder": Kind("encoded", "encoded"),
            "decoder": Kind("target", "inputs", ids=self.tensor(inputs)[0]),
            "cross": Kind(
                "target",
                "patches",
                name="alpha" if is_recurrent else None,
                is_self=False,
                total="alpha sum",
            ),
        }
        fields = self.tokens(target=target, inputs=inputs)
        fields["tokens"]["sum"] = ["sum over the words"]
        fields["tokens"]["patches"] = patch_names(grid[0], grid[1], n_prefix)
        if encoder is not None:
            fields["tokens"]["encoded"] = patch_names(grid[0], grid[1], n_encoded)
        gates: list[Tensor] = []
        gate = getattr(self.model.decoder, "gate", None)
        hook = gate and gate.register_forward_hook(lambda _m, _a, y: gates.append(y[0].sigmoid()))
        chosen = self.tensor(target)
        try:
            logits, ranks = self.run(
                collector, kinds, chosen, self._batch(example.image), self.tensor(inputs)
            )
        finally:
            if hook:
                hook.remove()
        positions = {i: i for i in range(len(target))}
        steps = self.steps(logits, target, positions, ranks, "generate", list="target")
        fields |= {"title": example.title, "steps": steps}
        fields["image"] = image_entry(example.picture, grid, n_prefix)
        if gates:
            fields["gate"] = [_short(float(value)) for value in torch.cat(gates)]
        return fields


def pixels(image: Tensor, artifacts: Any) -> Array:
    """Return the pixels (H, W, C) uint8 of a normalized image.

    Args:
        image: Normalized image (C, H, W).
        artifacts: Mapping with the keys `mean` and `std`, the values of each channel with which the
            image was normalized.
    """
    mean, std = (torch.tensor(artifacts[key]).view(-1, 1, 1) for key in ("mean", "std"))
    levels = (image.float().cpu() * std + mean).clamp(0, 1).mul(255).round().byte()
    return levels.permute(1, 2, 0).numpy()


def image_entry(picture: Array | None, grid: list[int], n_prefix: int) -> Row | None:
    """Return the field `image` of the page's data, with the image as a JPEG in a data URL.

    The JPEG has at most 60 kB, unless the lowest quality is larger.

    Args:
        picture: Pixels (H, W, C) uint8; None if the example has no image.
        grid: Number of rows and number of columns of the patches.
        n_prefix: Number of tokens before the patches.

    Returns:
        A dictionary with the keys `src` (the data URL), `width` and `height` in pixels, `grid` and
        `prefix`; None if `picture` is None.
    """
    if picture is None:
        return None
    image = Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture)
    factor = IMAGE_SIDE / max(image.size)
    if factor > 1:
        factor = max(1, math.floor(factor))
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    image = image.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC)
    for quality in (90, 70, 40, 10):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        if file.tell() <= IMAGE_BYTES:
            break
    url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    size_of = {"width": image.width, "height": image.height}
    return {"src": url, **size_of, "grid": grid, "prefix": n_prefix}


def patch_names(n_rows: int, n_columns: int, n_prefix: int) -> list[str]:
    """Return the names of the tokens before the patches, and of the patches row by row."""
    registers = [f"register {i}" for i in range(1, n_prefix)]
    prefix = ["[CLS]", *registers] if n_prefix > 2 else ["[CLS]", "[DIST]"][:n_prefix]
    grid = [(i, j) for i in range(n_rows) for j in range(n_columns)]
    return prefix + [f"row {i}, column {j}" for i, j in grid]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
