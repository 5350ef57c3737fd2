"""View: base class of the families' views, which build the rows of the document; image views.

Shapes: T tokens, S keys, K classes, V vocabulary, C channels, H height, W width.
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

N_ALTERNATIVES = 10  # tokens of a step
N_CLASSES = 5
IMAGE_SIDE = 256  # pixels of a picture in the page
IMAGE_BYTES = 60_000
FULL_PATCHES = 80  # tokens up to which all rows of a ViT have complete maps

Row = dict[str, Any]


class View:
    """Base class of views: reads inputs of one family, and builds a row of the document for each.

    Args:
        model: The model, in eval mode.
        truncate: Shorten texts that are too long for the model.
        generate: Number of tokens that a causal LM generates.

    Attributes:
        family: Name of the family in the document.
    """

    family: ClassVar[str]

    def __init__(self, model: Model, truncate: bool = False, generate: int = 20) -> None:
        self.model: Any = model
        self.truncate = truncate
        self.n_new = generate
        self.device = next(model.parameters()).device

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a text, and of a target text for an encoder-decoder.

        Raises:
            InputError: The model reads no texts, or the text is too long.
        """
        raise InputError("must not be given: the model reads no texts", option="--text")

    def from_image(self, path: str) -> Example:
        """Return the example of an image file.

        Raises:
            InputError: The model reads no images, or the file is no image.
        """
        raise InputError("must not be given: the model reads no images", option="--image")

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return the examples of a batch of the test data."""
        raise NotImplementedError

    def complete(self, example: Example) -> Example:
        """Return an example with the tokens that the model generates; by default there are none."""
        return example

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model once on a complete example, and return its row without maps and curves.

        Args:
            example: The example.
            collector: Collector of the maps and curves.
            is_first: The example is the first of the document.
        """
        raise NotImplementedError

    def tensor(self, ids: Any) -> Tensor:
        """Return integers as a batch (1, T) on the device of the model."""
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)

    def tokens(self, **lists: Any) -> Row:
        """Return the fields `tokens`, `words` and `special` for lists of token ids by name."""
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
        """Return the field `steps`: the distribution of the model at some tokens.

        Args:
            logits: Logits (T, V).
            ids: Ids of the tokens that were chosen.
            positions: Row of the logits for the index of each token.
            ranks: Ranks (L, T) of the chosen tokens by layer; None leaves them out.
            kind: generate or masked.
            **fields: Further fields of each step.
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
        """Run the model once, collect its maps, and return logits (T, V) and the logit lens.

        Args:
            collector: Collector of the maps.
            kinds: Kinds of attention to collect.
            chosen: Ids (1, T) of the tokens whose ranks the logit lens returns.
            *inputs: Inputs of the model.
            **options: Options of the model.

        Returns:
            Logits of the only sequence, and ranks (L, T) or None if the head reads no blocks.
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
        """Return the field `classes` for logits (K,): the most probable classes."""
        if len(logits) < 2:
            return []
        names = self.model.artifacts.get("class_names") or default_class_names(len(logits))
        values, best = logits.detach().float().softmax(-1).topk(min(N_CLASSES, len(logits)))
        return [[names[i], _short(p)] for i, p in zip(best.tolist(), values.tolist(), strict=True)]

    def search(self, source: Tensor, **options: Any) -> list[int]:
        """Return the target of the beam search of the checkpoint, without the start token."""
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
        """Id of the first input of a decoder."""
        found = getattr(self.model.generation_defaults, "bos_id", None)
        return tokenizer_of(self.model).bos_id if found is None else int(found)


class ImageView(View):
    """View of a Vision Transformer: patches, rollout, relevance, distances and classes."""

    family = "vit"

    def from_image(self, path: str) -> Example:
        """Return the example of an image file; its picture is the part that the model reads."""
        image = input_transform(self.model.artifacts)(path)
        seen = eval_transform(self.model.artifacts)(path)
        return Example(Path(path).name, image=image, picture=pixels(seen, self.model.artifacts))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return the examples of a batch of images, with the location of each image as title."""
        examples = []
        for i, row in enumerate(batch.rows.tolist()):
            stored = dataset.images.pixels(row, dataset.transform.n_channels)
            seen = dataset.transform([stored], 0, np.array([row]))[0]
            picture = pixels(seen, self.model.artifacts)
            examples.append(Example(f"test image {row}", image=batch.images[i], picture=picture))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Return the row of an image; later large images have maps of the class token only."""
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
    """View of a captioner: the image and the locations that each word attends to."""

    family = "captioning"

    def complete(self, example: Example) -> Example:
        """Return the example with the caption of the beam search."""
        assert example.image is not None
        limits = (getattr(self.model.config, "max_len", None), self.model.artifacts.get("max_len"))
        longest = min([51, *(limit for limit in limits if limit is not None)]) - 1
        with torch.inference_mode():
            target = self.search(self._batch(example.image), bos_id=self.start_id, max_len=longest)
        text = tokenizer_of(self.model).decode(target)
        return replace(example, target=target, title=f"{example.title}: {text}")

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Return the row of an image with its caption."""
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
    """Return the pixels (H, W, C) uint8 of a normalised image (C, H, W)."""
    mean, std = (torch.tensor(artifacts[key]).view(-1, 1, 1) for key in ("mean", "std"))
    levels = (image.float().cpu() * std + mean).clamp(0, 1).mul(255).round().byte()
    return levels.permute(1, 2, 0).numpy()


def image_entry(picture: Array | None, grid: list[int], n_prefix: int) -> Row | None:
    """Return the field `image` of a row: a JPEG of at most 60 kB as a data URL, and its patches."""
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
