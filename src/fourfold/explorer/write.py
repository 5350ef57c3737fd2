"""look: the page of a model in a notebook; write_page: the page in a file."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.atomic_files import write_atomically
from fourfold.checkpoints.load import load
from fourfold.errors import InputError
from fourfold.explorer.document import Settings, build_document, join_documents, make_view
from fourfold.explorer.inputs import Example
from fourfold.explorer.page import assemble
from fourfold.explorer.views import View
from fourfold.models.base import Model

N_ROWS = 8  # of the test data in a page of `fourfold test`


@dataclass(frozen=True, eq=False)
class Page:
    """Page of attention maps, which a notebook displays.

    Args:
        html: Text of the HTML file.
        document: Tokens, statistics and offsets of the maps.
        height: Height of the frame in a notebook, in pixels.
    """

    html: str
    document: dict[str, Any]
    height: int = 800

    @classmethod
    def join(cls, parts: Sequence[tuple[dict[str, Any], bytes]]) -> "Page":
        """Return the page of one or several models; arguments of `join_documents`."""
        document, maps = parts[0] if len(parts) == 1 else join_documents(parts)
        return cls(assemble(document, maps), document)

    def _repr_html_(self) -> str:
        source = html.escape(self.html, quote=True)
        style = f'width="100%" height="{self.height}" style="border:0"'
        return f'<iframe title="Attention maps" srcdoc="{source}" {style}></iframe>'

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page to a file, completely or not at all.

        Raises:
            InputError: The file exists and `overwrite` is False, or its folder does not exist.
        """
        path = Path(path)
        check_output(path, overwrite)
        write_atomically(path, self.html)

    def describe(self, path: Path) -> str:
        """Return a line with path, size and content of the page after it was written to `path`."""
        rows, default = self.document["rows"], self.document["provenance"]
        models = dict.fromkeys(row.get("provenance", default)["model"] for row in rows)
        n_maps = sum(len(row["maps"]) for row in rows)
        size = path.stat().st_size / 1e6
        return f"{path}: {size:.2f} MB, {len(rows)} inputs and {n_maps} maps of {', '.join(models)}"


def check_output(path: Path, overwrite: bool, option: str = "--out") -> None:
    """Check that a page may be written to a path, before the model runs.

    Raises:
        InputError: The path is a folder, its folder does not exist, or the file exists and
            `overwrite` is False.
    """
    if path.is_dir():
        raise InputError(f"must be a file, got the folder {path}", option=option)
    if not path.absolute().parent.is_dir():
        raise InputError(f"must be in a folder that exists, got {path}", option=option)
    if path.exists() and not overwrite:
        raise InputError(
            f"must be a new file, but {path} exists; --overwrite replaces it", option=option
        )


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
        text: One or several texts; masks are written as [MASK], and pairs of texts with a tab.
        source: One or several source texts of a translation model, in place of `text`.
        target: A target text for each source; None means the output of the model.
        image: One or several image files.
        generate: Number of tokens that a causal LM appends to a text.
        compare: A second model of the same family and tokens.
        layers: Indices of the layers; negative ones count from the last. None means all layers, or
            fewer heads if the page would exceed 15 MB.
        precision: 8, or 16 for half floats.
        truncate: Shorten texts that are too long for the model.

    Raises:
        InputError: The model has no attention, an input does not fit the model, or there is none.

    Example:
        >>> page = fourfold.look("runs/bert/tiny", "The [MASK] sat down.")  # doctest: +SKIP
        >>> page.save("look.html")  # doctest: +SKIP
    """
    path = model if isinstance(model, str | Path) else None
    loaded = load(path) if path is not None else model
    assert isinstance(loaded, Model)
    other = load(compare) if isinstance(compare, str | Path) else compare
    name = "" if path is None else Path(path).name
    chosen = None if layers is None else tuple(layers)
    settings = Settings(chosen, precision, generate, truncate, "fourfold.look", name)
    view = make_view(loaded, settings)
    examples = read_examples(view, _list(text), _list(source), _list(target), _list(image))
    if not examples:
        raise InputError("must be given, or an image", option="text")
    return make_page(loaded, examples, settings, other)


def make_page(
    model: Model, examples: Sequence[Example], settings: Settings, other: Model | None = None
) -> Page:
    """Build the document of examples, and return the page; arguments of `build_document`."""
    return Page.join([build_document(model, examples, settings, other)])


def write_page(
    checkpoint: Path, data: Any, out: Path, classes: Sequence[str] = (), command: str = ""
) -> str:
    """Write the page of the first rows of test data, and return a line that describes it.

    Args:
        checkpoint: The checkpoint file.
        data: DataModule with the test split.
        out: File of the page, which is replaced if it exists.
        classes: Import paths of the user's classes that the checkpoint may name.
        command: Command that the page shows.

    Raises:
        InputError: The model has no attention, or there is no page for its family.
    """
    model = load(checkpoint, classes=tuple(classes))
    settings = Settings(command=command, checkpoint=checkpoint.name)
    examples = first_examples(make_view(model, settings), data, N_ROWS)
    page = make_page(model, examples, settings)
    page.save(out, overwrite=True)
    return page.describe(out)


def first_examples(view: View, data: Any, n_rows: int, split: str = "test") -> list[Example]:
    """Return the examples of the first rows of a split of a DataModule.

    Raises:
        InputError: The data have no such split.
    """
    dataset = data.split(split)
    dataset.prepare()
    batch = dataset.batch(np.arange(min(n_rows, len(dataset))), 0, 0)
    return view.from_batch(batch, dataset)


def read_examples(
    view: View,
    texts: Sequence[str],
    sources: Sequence[str],
    targets: Sequence[str],
    images: Sequence[str],
) -> list[Example]:
    """Return the examples of texts, sources with their targets, and image files.

    Raises:
        InputError: An input does not fit the model, or there are targets for other numbers of
            sources.
    """
    sources = [*sources, *texts]
    if targets and len(targets) != len(sources):
        problem = (
            f"must be given for each of {len(sources)} sources or for none, got {len(targets)}"
        )
        raise InputError(problem, option="--target")
    wanted: Sequence[str | None] = targets or [None] * len(sources)
    pairs = zip(sources, wanted, strict=True)
    return [*(view.from_text(*pair) for pair in pairs), *map(view.from_image, images)]


def _list(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, str | Path) else [str(item) for item in value]
