"""Views of models for images: ViT, masked autoencoder, CLIP and captioning.

Shapes: T tokens, S texts, C channels, H height, W width.
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.analysis.attention_flow import relevance
from fourfold.analysis.attention_maps import Array, attention_layers
from fourfold.analysis.attention_statistics import patch_distances
from fourfold.data.vision.eval_transforms import eval_transform
from fourfold.data.vision.features import input_transform
from fourfold.explorer.inputs import Example, short_title
from fourfold.explorer.maps import Collector, Kind, short_number
from fourfold.explorer.text_views import TranslationView
from fourfold.explorer.views import Row, View
from fourfold.layers.image_positions import Grid
from fourfold.layers.patch_embedding import patch_grid

IMAGE_SIDE = 256  # longer side of an image on the page, in pixels
FULL_PATCHES = 80  # tokens of a ViT up to which the maps of all examples are stored completely
VISIBLE = 0.25  # share of the patches that the encoder of a masked autoencoder sees


class ImageView(View):
    """View of a Vision Transformer: attention, rollout, and relevance for the predicted class.

    All maps are stored for the first example and for images of at most `FULL_PATCHES` tokens. Of
    other examples, only the attention of the class token is stored.
    """

    family = "vit"

    def from_image(self, path: str) -> Example:
        """Convert an image file; the page shows it as resized and cropped for evaluation."""
        image = input_transform(self.model.artifacts)(path)
        seen = eval_transform(self.model.artifacts)(path)
        return Example(Path(path).name, image=image, picture=pixels(seen, self.model.artifacts))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert an `ImageBatch`; the displayed pixels are read from the dataset."""
        examples = []
        for i, row in enumerate(batch.rows.tolist()):
            n_channels = dataset.transform.n_channels
            stored = dataset.images.pixels(row, n_channels)[:n_channels]  # without a mask
            seen = dataset.transform([stored], 0, np.array([row]))[0]
            picture = pixels(seen, self.model.artifacts)
            labels = getattr(batch, "labels", None)
            label = None if labels is None or labels.is_floating_point() else int(labels[i])
            title = f"test image {row}"
            examples.append(Example(title, image=batch.images[i], picture=picture, label=label))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        grid = self.grid
        images = self._batch(example.image)
        n_prefix = self.model.n_prefix
        n_tokens = n_prefix + math.prod(grid)
        kind = self._kind(grid, n_prefix, is_first)
        model = self.model if self.model.heads else self.model.encode  # as in a published DINOv2
        logits = collector.collect(self.model, lambda: model(images), {"self": kind})[0]
        classes = self.classes(logits) if self.model.heads else []
        if self.model.heads:
            best, title = int(logits.argmax()), "relevance for the output"
            if classes:
                title = f"relevance for class {classes[0][0]} ({classes[0][1]:.3g})"
            _add_relevance(collector, self.model, lambda: model(images)[:, best], n_prefix, title)
        positions = getattr(self.model.embed, "positions", None)
        if is_first and positions is not None and len(positions.weight) == n_tokens:
            unit = torch.nn.functional.normalize(positions.weight.detach().float(), dim=-1)
            same = (unit @ unit.mT).clamp(-1, 1).cpu().numpy()
            collector.add("positions", same, "patches", "patches", range=[-1.0, 1.0])
        pooled = "mean of the patches" if self.model.config.pool == "mean" else "[CLS]"
        return {
            "tokens": {"patches": patch_names(*grid, n_prefix), "class": [pooled]},
            "query": 0 if n_prefix else None,
            "image": image_entry(example.picture, grid, n_prefix),
            "classes": classes,
            "truth": None if example.label is None else self.class_names(logits)[example.label],
        }

    def _kind(self, grid: Grid, n_prefix: int, is_first: bool, name: str | None = None) -> Kind:
        """Return the options for the self-attention of an image encoder."""
        whole = is_first or not n_prefix or n_prefix + math.prod(grid) <= FULL_PATCHES
        return Kind(
            "patches" if whole else "class",
            "patches",
            name=name,
            distances=patch_distances(*grid, n_prefix),
            first_queries=None if whole else 1,
            rollout="rollout",
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of rows and columns of the patches."""
        return patch_grid(self.model.config.image_size, self.model.config.patch_size)

    def _batch(self, image: Tensor) -> Tensor:
        return image[None].to(self.device, next(self.model.parameters()).dtype)


class MaskedImageView(ImageView):
    """View of a masked autoencoder; patches that the encoder does not see are dark."""

    family = "masked_image"

    def from_image(self, path: str) -> Example:
        """Convert an image file; the same quarter of the patches is visible in each image."""
        order = np.random.default_rng(0).permutation(math.prod(self.grid))
        visible = sorted(order[: max(1, round(VISIBLE * len(order)))].tolist())
        return replace(super().from_image(path), visible=visible)

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert a `MaskedImageBatch`."""
        pairs = zip(super().from_batch(batch, dataset), batch.visible.tolist(), strict=True)
        return [replace(example, visible=visible) for example, visible in pairs]

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        grid = self.grid
        images, visible = self._batch(example.image), self.tensor(example.visible)
        names, distances = patch_names(*grid, 1), patch_distances(*grid, 1)
        seen = [0, *(1 + patch for patch in example.visible)]
        kinds = {
            "self": Kind("visible", "visible", name="encoder", distances=distances[seen][:, seen]),
            "decoder_stack": Kind("patches", "patches", name="decoder", distances=distances),
        }
        collector.collect(self.model, lambda: self.model(images, visible=visible), kinds)
        collector.maps.sort(key=lambda entry: bool(entry["name"] == "encoder"))
        hidden = sorted(set(range(1, len(names))) - set(seen))
        return {
            "tokens": {"patches": names, "visible": [names[i] for i in seen]},
            "query": hidden[0] if hidden else 0,
            "hint": "Dark patches are hidden from the encoder, and the decoder predicts them.",
            "image": image_entry(darken(example.picture, hidden, grid), grid, 1),
        }


class ImageTextView(ImageView):
    """View of CLIP or SigLIP on images and texts.

    The classes of an image are the texts of all examples, and the relevance is that for the text of
    the example, or else for the most similar text. SigLIP has no class token but a learned query
    that pools the patches, and a text has the padding to which its encoder attends.
    """

    family = "image_text"
    texts: Sequence[list[int]] = ()

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text."""
        tokenizer = self.reader.tokenizer
        # The published SigLIPs have no start token.
        has_start = not (hasattr(self.model.config, "pad_id") and self.model.source)
        start = [tokenizer.bos_id] if has_start else []
        ids = self.reader.truncate(tokenizer.encode(text), n_special=1 + len(start))
        return Example(short_title(text), [*start, *ids, tokenizer.eos_id])

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the images of a `CaptionBatch` with their captions."""
        decode, found = self.reader.tokenizer.decode, []
        examples = super().from_batch(batch, dataset)
        for example, row, mask in zip(examples, batch.ids, batch.mask, strict=True):
            ids = row[mask].tolist()
            title = short_title(f"{example.title}: {decode(ids)}")
            found.append(replace(example, ids=ids, title=title))
        return found

    def prepare(self, examples: Sequence[Example]) -> None:
        """Keep the different texts of all examples, with which each image is compared."""
        found = {tuple(example.ids): list(example.ids) for example in examples if example.ids}
        self.texts = list(found.values())

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        model: Any = self.model
        n_prefix, is_siglip = model.config.n_prefix, hasattr(model.config, "pad_id")
        fields: Row = {"tokens": {}}
        if example.ids:
            shown = list(example.ids)
            if is_siglip:
                shown += [model.config.pad_id] * (model.config.max_len - len(shown))
            ids = self.tensor(shown)
            fields |= self.tokens(tokens=shown)
            kinds = {"text_stack": Kind("tokens", "tokens", name="text", ids=ids[0])}
            collector.collect(model, lambda: model.encode_text(ids), kinds)
        if example.image is None:
            return fields
        grid, images = self.grid, self._batch(example.image)
        kinds = {"image_stack": self._kind(grid, n_prefix, is_first, name="image")}
        if is_siglip:
            kinds["self"] = Kind("class", "patches", "pooling by the learned query", is_self=False)
        collector.collect(model, lambda: model.encode_image(images), kinds)
        collector.maps.sort(key=lambda entry: bool(entry["name"] == "text"))
        pooled = "learned query" if is_siglip else "[CLS]"
        fields["tokens"] |= {"patches": patch_names(*grid, n_prefix), "class": [pooled]}
        fields["image"] = image_entry(example.picture, grid, n_prefix)
        fields["query"] = 0 if n_prefix else None
        if not self.texts:
            return fields
        with torch.no_grad():
            texts = torch.cat([model.encode_text(self.tensor(ids)) for ids in self.texts])
            logits = model.similarity(model.encode_image(images), texts)[0]
        names = [short_title(self.reader.tokenizer.decode(ids)) for ids in self.texts]
        own = list(example.ids)
        best = self.texts.index(own) if own in self.texts else int(logits.argmax())

        def forward() -> Tensor:
            return model.similarity(model.encode_image(images), texts[best : best + 1])[:, 0]

        paths = [path for path, (name, _) in attention_layers(model).items() if name in kinds]
        title = f"relevance for the text ‘{names[best]}’"
        _add_relevance(collector, model, forward, n_prefix, title, paths)
        return fields | {"classes": self.classes(logits, names, are_independent=is_siglip)}


class CaptionView(ImageView):
    """View of a captioning model on an image and on the caption that it generates."""

    family = "captioning"

    def complete(self, example: Example) -> Example:
        """Generate a caption by beam search."""
        longest = min(51, self.reader.max_len or 51) - 1
        with torch.inference_mode():
            image = self._batch(example.image)
            found = self.search(image, bos_id=self.start_id, max_new_tokens=longest)
        title = f"{example.title}: {self.reader.tokenizer.decode(found[0].ids)}"
        return replace(example, target=found[0].ids, hypotheses=found, title=title)

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        inputs = self.decoder_inputs(example)
        encoder = getattr(self.model.config, "encoder", None)
        alpha = "alpha" if self.model.is_recurrent else None
        n_encoded = 0 if encoder is None else encoder.n_prefix
        n_prefix = 0 if self.model.is_recurrent else n_encoded
        grid = example.image.shape[1], example.image.shape[2]
        if encoder is not None:
            grid = patch_grid(encoder.image_size, encoder.patch_size)
        distances = None if encoder is None else patch_distances(*grid, n_encoded)
        kinds = {
            "encoder": Kind("encoded", "encoded", distances=distances),
            "decoder": Kind("target", "inputs", ids=self.tensor(inputs)[0]),
            "cross": Kind("target", "patches", name=alpha, is_self=False, total="alpha sum"),
        }
        fields = self.tokens(target=example.target or [], inputs=inputs)
        fields["tokens"]["sum"] = ["sum over the words"]
        fields["tokens"]["patches"] = patch_names(*grid, n_prefix)
        if encoder is not None:
            fields["tokens"]["encoded"] = patch_names(*grid, n_encoded)
        gates: list[Tensor] = []
        gate = getattr(self.model.decoder, "gate", None)
        with ExitStack() as hooks:
            if gate:
                hook = gate.register_forward_hook(lambda _m, _a, y: gates.append(y[0].sigmoid()))
                hooks.enter_context(hook)
            fields |= self.decode(example, collector, kinds, self._batch(example.image))
        fields["image"] = image_entry(example.picture, grid, n_prefix)
        if gates:
            fields["gate"] = [short_number(float(value)) for value in torch.cat(gates)]
        return fields


def pixels(image: Tensor, artifacts: Any) -> Array:
    """Return the pixels (H, W, C) uint8 of an image (C, H, W) normalized as the artifacts say."""
    mean, std = (torch.tensor(artifacts[key]).view(-1, 1, 1) for key in ("mean", "std"))
    levels = (image.float().cpu() * std + mean).clamp(0, 1).mul(255).round().byte()
    return levels.permute(1, 2, 0).numpy()


def darken(picture: Array, hidden: Sequence[int], grid: Grid) -> Array:
    """Return pixels (H, W, C) whose hidden patches, from 1, have a quarter of their brightness."""
    seen = np.ones(math.prod(grid), np.float32)
    seen[np.array(hidden, int) - 1] = 0.25
    height, width = (size // n for size, n in zip(picture.shape[:2], grid, strict=True))
    factors = np.kron(seen.reshape(grid), np.ones((height, width)))
    return (picture * factors[..., None]).astype(np.uint8)


def image_entry(picture: Array | None, grid: Grid, n_prefix: int) -> Row | None:
    """Return the field `image`: a JPEG in a data URL, and its sizes.

    `grid` is the number of rows and of columns of the
    patches, before which there are `n_prefix` tokens. The result is None without a picture.
    """
    if picture is None:
        return None
    image = Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture)
    factor = IMAGE_SIDE / max(image.size)
    if factor > 1:
        factor = max(1, math.floor(factor))
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    image = image.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    size_of = {"width": image.width, "height": image.height}
    return {"src": url, **size_of, "grid": list(grid), "prefix": n_prefix}


def patch_names(n_rows: int, n_columns: int, n_prefix: int) -> list[str]:
    """Return the names of the tokens before the patches, and of the patches row by row."""
    registers = [f"register {i}" for i in range(1, n_prefix)]
    prefix = ["[CLS]", *registers] if n_prefix > 2 else ["[CLS]", "[DIST]"][:n_prefix]
    grid = [(i, j) for i in range(n_rows) for j in range(n_columns)]
    return prefix + [f"row {i}, column {j}" for i, j in grid]


def _add_relevance(
    collector: Collector,
    model: Any,
    forward: Callable[[], Tensor],
    n_prefix: int,
    title: str,
    paths: Sequence[str] | None = None,
) -> None:
    """Add the relevance of the patches for the output (1,) of `forward` to the maps.

    Without a class token, it is the mean over all queries, or that for the learned query.
    """
    total = relevance(model, forward, paths)[0]
    scores = (total[:1] if n_prefix else total.mean(0, keepdim=True)).cpu().numpy()
    scores = scores - np.eye(1, scores.shape[1], dtype=scores.dtype) * bool(n_prefix)
    limits = [0.0, float(scores.max())]
    collector.add("relevance", scores, "class", "patches", title=title, range=limits)


def make_seq2seq_view(model: Any, truncate: bool, generate: int) -> View:
    """Return the view of an encoder-decoder, whose source is an image or a text."""
    return (CaptionView if model.accepts_images else TranslationView)(model, truncate, generate)
