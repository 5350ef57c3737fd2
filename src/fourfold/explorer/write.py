"""Pages of attention maps in a notebook (`fourfold.look`) and in a file (`write_page`)."""

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
from fourfold.layers.base_model import Model

N_ROWS = 8  # examples of the test data in a page of `fourfold test`


@dataclass(frozen=True, eq=False)
class Page:
    """Page of attention maps, which a notebook displays.

    Args:
        html: Text of the HTML file.
        document: Content of the page without the weights, a dictionary of JSON values (see
            `fourfold.explorer.document`).
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

        Args:
            path: Path of the HTML file.
            overwrite: Replace the file if it exists.

        Raises:
            InputError: The file exists and `overwrite` is False, or its folder does not exist.
        """
        path = Path(path)
        check_output(path, overwrite)
        write_atomically(path, self.html)

    def describe(self, path: Path) -> str:
        """Return a line of text about a page that was written to a file.

        The line holds the path, the size in MB, the numbers of inputs and maps, and the names of
        the model classes.

        Args:
            path: Path of the file.
        """
        rows, default = self.document["rows"], self.document["provenance"]
        models = dict.fromkeys(row.get("provenance", default)["model"] for row in rows)
        n_maps = sum(len(row["maps"]) for row in rows)
        size = path.stat().st_size / 1e6
        return f"{path}: {size:.2f} MB, {len(rows)} inputs and {n_maps} maps of {', '.join(models)}"


def check_output(path: Path, overwrite: bool, option: str = "--out") -> None:
    """Check that a page may be written to a path, before the model runs.

    Args:
        path: Path of the HTML file.
        overwrite: Allow a file that exists.
        option: Name of the option in the error message.

    Raises:
        InputError: The path is a folder, its folder does not exist, or the file exists and
            `overwrite` is False.
    """
    if path.is_dir():
        raise InputError(f"must be a file, got the folder {path}", option=option)
    if not path.absolute().parent.is_dir():
        raise InputError(f"must be in a folder that exists, got {path}", option=option)
    if path.exists() and not overwrite:
        problem = f"must be a new file, but {path} exists; --overwrite replaces it"
        raise InputError(problem, option=option)


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
        text: One or several texts. A mask is written as [MASK]. A pair of texts is one string with
            a tab between the texts.
        source: One or several source texts of a translation model, in place of `text`.
        target: A target text for each source text; None means that the model generates it.
        image: Path of one or several image files.
        generate: Number of tokens that a causal LM appends to a text.
        compare: Second model, or its path, whose maps the page also shows. The model must have the
            family and the tokens of `model`.
        layers: Indices of the layers to show. Negative indices count from the last layer. None
            means all layers. If the maps of all heads are too large for the page, the heads of only
            three layers are then shown.
        precision: Bits of a stored weight, 8 (quantized, with an error of at most 0.004) or 16
            (half floats).
        truncate: Shorten texts that are too long for the model.

    Returns:
        The page, which `save` writes to an HTML file.

    Raises:
        InputError: The model has no attention, an input does not fit the model, or no input is
            given.

    Example:
        >>> import tempfile, fourfold
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100).eval()  # or a trained one
        >>> model.tokenizer = train_tokenizer(TokenizerConfig("char"), ["the cat"], mask=False)
        >>> page = fourfold.look(model, "the cat", generate=0)  # a notebook shows the page
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page.save(f"{folder}/look.html")
        ...     Path(folder, "look.html").stat().st_size > 10_000
        True
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
    """Run a model on examples, and return the page of its attention maps.

    Args:
        model: The model, in eval mode.
        examples: Inputs of the model, as its view returns them.
        settings: Options of the document.
        other: Second model, whose maps the page also shows; None for no second model.

    Raises:
        InputError: The model has no attention or no view, or `other` differs in family or tokens.
    """
    return Page.join([build_document(model, examples, settings, other)])


def write_page(
    checkpoint: Path, data: Any, out: Path, classes: Sequence[str] = (), command: str = ""
) -> str:
    """Write a page of the first `N_ROWS` (8) examples of the test data to a file.

    Args:
        checkpoint: Path of the checkpoint file.
        data: DataModule with a test split.
        out: Path of the HTML file, which is replaced if it exists.
        classes: Import paths of the user's classes that the checkpoint may name.
        command: Text of the command that made the page, which the page displays.

    Returns:
        A line of text with the path, the size and the content of the page.

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
    """Convert the first rows of a split of a DataModule to inputs of the page.

    Args:
        view: View of the model, which converts the batch to examples.
        data: The DataModule.
        n_rows: Largest number of examples.
        split: Name of the split.

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
    """Convert texts and image files to inputs of the page, in the order sources, texts, images.

    Args:
        view: View of the model.
        texts: Texts without targets.
        sources: Source texts of an encoder-decoder.
        targets: A target text for each text of `sources` and then of `texts`. If the list is empty,
            the model generates the target texts.
        images: Paths of image files.

    Raises:
        InputError: An input does not fit the model, or the number of target texts is wrong.
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
