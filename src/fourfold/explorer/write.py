"""Pages of attention maps: `fourfold.look`, and the inputs that the page shows."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourfold.atomic_files import write_atomically
from fourfold.checkpoints.load import generation_defaults, load
from fourfold.errors import InputError
from fourfold.explorer.document import (
    Settings,
    build_document,
    join_documents,
    make_view,
    shown_name,
)
from fourfold.explorer.inputs import Example
from fourfold.explorer.page import assemble
from fourfold.explorer.views import View
from fourfold.generation.step import eval_copy
from fourfold.hub.directory import set_attributes
from fourfold.layers.base_model import Model


@dataclass(frozen=True, eq=False)
class Page:
    """Page of attention maps, which a notebook displays."""

    html: str  # text of the file
    document: dict[str, Any]  # content without the weights (see `fourfold.explorer.document`)
    height: int = 800  # of the frame in a notebook, in pixels

    @classmethod
    def join(cls, parts: Sequence[tuple[dict[str, Any], bytes]]) -> "Page":
        """Return the page of one or several models, from results of `build_document`."""
        document, maps = parts[0] if len(parts) == 1 else join_documents(parts)
        return cls(assemble(document, maps), document)

    def _repr_html_(self) -> str:
        source = html.escape(self.html, quote=True)
        style = f'width="100%" height="{self.height}" style="border:0"'
        return f'<iframe title="Attention maps" srcdoc="{source}" {style}></iframe>'

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page to an HTML file, completely or not at all.

        Raises:
            InputError: The file exists and `overwrite` is False, or its folder does not exist.
        """
        path = Path(path)
        check_output(path, overwrite)
        write_atomically(path, self.html)

    def describe(self, path: Path) -> str:
        """Return a line about the page in a file: size in MB, inputs, maps and model classes."""
        rows, default = self.document["rows"], self.document["provenance"]
        models = dict.fromkeys(row.get("provenance", default)["model"] for row in rows)
        n_maps = sum(len(row["maps"]) for row in rows)
        size = path.stat().st_size / 1e6
        return f"{path}: {size:.2f} MB, {len(rows)} inputs and {n_maps} maps of {', '.join(models)}"


def check_output(path: Path, overwrite: bool) -> None:
    """Raise InputError if a page cannot be written to a path, before the model runs."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"must be in a folder that exists, got {path}", option="--out")
    if path.exists() and not overwrite:
        problem = f"must be a new file, but {path} exists; --overwrite replaces it"
        raise InputError(problem, option="--out")


def look(
    model: Model | str | Path,
    text: str | Sequence[str] | None = None,
    *,
    source: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    image: str | Path | Sequence[str | Path] | None = None,
    generate: int = 20,
    compare: Model | str | Path | None = None,
    layers: Sequence[int] | None = None,
    precision: int = 8,
    truncate: bool = False,
) -> Page:
    """Return the page of a model's attention to texts or images, which a notebook displays.

    Args:
        model: A model, or a path that `fourfold.load` accepts.
        text: One or several texts, with [MASK] for masks and a tab between the texts of a pair.
        source: One or several source texts of a translation model.
        target: A target text for each source text; None means that the model generates it.
        image: One or several image files.
        generate: Number of tokens that a causal LM appends to a text.
        compare: Second model, or its path, of the same family and tokens.
        layers: Indices of the layers to show, negative ones from the last layer; None means all. If
            their maps are too large for the page, the heads of three layers are shown.
        precision: Bits of a stored weight, 8 (an error of at most 0.004) or 16 (half floats).
        truncate: Shorten texts that are too long for the model.

    Raises:
        InputError: The model has no attention, an input does not fit it, or no input is given.

    Example:
        >>> import fourfold
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100).eval()  # or a trained one
        >>> model.tokenizer = train_tokenizer(TokenizerConfig("char"), ["the cat"], mask=False)
        >>> page = fourfold.look(model, "the cat", generate=0)  # a notebook shows the page
        >>> page.document["rows"][0]["tokens"]  # `page.save` writes an HTML file
        {'tokens': ['t', 'h', 'e', ' ', 'c', 'a', 't']}
    """
    loaded: Any = load(model) if isinstance(model, str | Path) else model
    other = load(compare) if isinstance(compare, str | Path) else compare
    paths = (x if isinstance(x, str | Path) else None for x in (model, compare))
    name, compared = ("" if path is None else shown_name(path) for path in paths)
    chosen = None if layers is None else tuple(layers)
    shown = chosen, precision, generate, truncate
    settings = Settings(*shown, "fourfold.look", name, name, compared)
    view = make_view(loaded, settings)
    inputs = (
        [] if given is None else [given] if isinstance(given, str | Path) else given
        for given in (text, source, target, image)
    )
    examples = read_examples(view, *(list(map(str, given)) for given in inputs))
    if not examples:
        raise InputError("must be given, or an image", option="text")
    return Page.join([build_document(loaded, examples, settings, other)])


def first_examples(view: View, data: Any, n_rows: int, split: str = "test") -> list[Example]:
    """Convert the first rows of a split of a DataModule to inputs of the page."""
    dataset = data.split(split)
    dataset.prepare()
    return view.from_batch(dataset.batch(np.arange(min(n_rows, len(dataset))), 0, 0), dataset)


def read_examples(
    view: View,
    texts: Sequence[str],
    sources: Sequence[str],
    targets: Sequence[str],
    images: Sequence[str],
) -> list[Example]:
    """Convert texts and image files to inputs of the page, in the order sources, texts, images.

    There are targets for all sources and texts, or none, so that the model generates them.

    Raises:
        InputError: An input does not fit the model, or the number of targets is wrong.
    """
    sources = [*sources, *texts]
    if targets and len(targets) != len(sources):
        problem = f"must be given for each of {len(sources)} sources or for none"
        raise InputError(f"{problem}, got {len(targets)}", option="--target")
    wanted: Sequence[str | None] = targets or [None] * len(sources)
    pairs = zip(sources, wanted, strict=True)
    return [*(view.from_text(*pair) for pair in pairs), *map(view.from_image, images)]


def make_task_page(task: Any, split: str, n_rows: int, checkpoint: str) -> Page:
    """Return the page of the first examples of a split of the DataModule of a task."""
    defaults = generation_defaults(task.init_args())
    model = eval_copy(task.model)  # so that the attributes of `task.model` do not change
    set_attributes(model, Path(), task.artifacts.get("tokenizer"), task.artifacts, defaults)
    settings = Settings(checkpoint=checkpoint)
    with torch.inference_mode():
        examples = first_examples(make_view(model, settings), task.datamodule, n_rows, split)
        return Page.join([build_document(model, examples, settings)])
