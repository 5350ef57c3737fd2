"""build_document, join_documents: the document of the page and the bytes of its maps."""

import zlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from fourfold.checkpoints.digests import compute_digests
from fourfold.environment import commit
from fourfold.errors import InputError
from fourfold.explorer.inputs import Example
from fourfold.explorer.maps import Collector, Layers, MapWriter
from fourfold.explorer.text_views import (
    CausalView,
    ClassifierView,
    DocumentView,
    MaskedView,
    TranslationView,
)
from fourfold.explorer.views import CaptionView, ImageView, View
from fourfold.models import (
    CausalClassifier,
    CausalLM,
    HierarchicalClassifier,
    MaskedLM,
    SequenceClassifier,
    TokenClassifier,
    ViT,
)
from fourfold.models.analysis.attention_maps import attention_layers, select_layers
from fourfold.models.base import Model
from fourfold.models.classifiers import SpanExtractor
from fourfold.models.encoder_decoder import Seq2Seq

ROW_BYTES = 3_000_000  # of the maps of a row in base64
FILE_BYTES = 15_000_000  # of the maps of all rows in base64

# The view of a model is that of the first class that it is an instance of.
VIEWS: list[tuple[type[Model], type[View]]] = [
    (HierarchicalClassifier, DocumentView),
    (ViT, ImageView),
    (CausalClassifier, ClassifierView),
    (CausalLM, CausalView),
    (SequenceClassifier, ClassifierView),
    (TokenClassifier, ClassifierView),
    (SpanExtractor, ClassifierView),
    (MaskedLM, MaskedView),
]


class Settings(NamedTuple):
    """Options of the document.

    Args:
        layers: Indices of the stored layers; negative ones count from the last. None means all, or
            fewer if the file would become too large.
        precision: 8 for bytes, or 16 for half floats.
        generate: Number of tokens that a causal LM generates.
        truncate: Shorten texts that are too long for the model.
        command: Command that made the page.
        checkpoint: Name of the checkpoint, without its folder.
        n_models: Number of models that share the page, and its size.
    """

    layers: tuple[int, ...] | None = None
    precision: int = 8
    generate: int = 20
    truncate: bool = False
    command: str = ""
    checkpoint: str = ""
    n_models: int = 1


def make_view(model: Model, settings: Settings) -> View:
    """Return the view of a model.

    Raises:
        InputError: The model has no attention, its family has no view, or it has fewer layers than
            `settings.layers` names.
    """
    select_layers(model, settings.layers, "--layers")
    view = next((view for parent, view in VIEWS if isinstance(model, parent)), None)
    if isinstance(model, Seq2Seq):
        view = CaptionView if model.accepts_images else TranslationView
    if view is None:
        problem = f"is a {type(model).__name__}, for which there is no page"
        raise InputError(problem, option="the checkpoint")
    return view(model, settings.truncate, settings.generate)


def build_document(
    model: Model, examples: Sequence[Example], settings: Settings, other: Model | None = None
) -> tuple[dict[str, Any], bytes]:
    """Run a model on examples, and return the document of the page and the bytes of all maps.

    Args:
        model: The model, in eval mode.
        examples: Inputs, as the model's view returns them.
        settings: Options of the document.
        other: Model that is compared with, which reads the same tokens.

    Raises:
        InputError: The model has no attention or no view, or `other` differs in family or tokens.
    """
    view = make_view(model, settings)
    compared = None if other is None else make_view(other, settings)
    if compared is not None and type(compared) is not type(view):
        raise InputError(
            f"must be a model of the family {view.family}, got {compared.family}",
            option="--compare",
        )
    writer, notices, rows = MapWriter(settings.precision), [], []
    budget = min(ROW_BYTES, FILE_BYTES // max(1, settings.n_models * len(examples)))
    for number, given in enumerate(examples):
        example = view.complete(given)
        begin = len(writer.data)
        row = _row(view, compared, example, writer, Layers(settings.layers), number == 0)
        size = len(zlib.compress(bytes(writer.data[begin:]), 6)) * 4 // 3
        if size > budget and settings.layers is None:
            del writer.data[begin:]
            reduced = Layers(with_heads=_few_layers(model))
            row = _row(view, compared, example, writer, reduced, number == 0)
            notices.append(
                f"Row {number}: the heads of layers other than"
                f" {', '.join(map(str, reduced.with_heads or ()))} are left out, since the maps of"
                f" all heads would take {size / 1e6:.1f} MB; --layers chooses other layers."
            )
        rows.append(row)
    name = type(model).__name__
    document = {
        "title": f"Attention of {settings.checkpoint or name}",
        "family": view.family,
        "precision": settings.precision,
        "provenance": {
            "command": settings.command,
            "checkpoint": settings.checkpoint,
            "digest": weights_digest(model),
            "version": version("fourfold"),
            "commit": commit(),
            "model": name,
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "notice": notices,
        "rows": rows,
        "compare": None if other is None else {"title": f"{type(other).__name__} (other)"},
    }
    return document, bytes(writer.data)


def join_documents(parts: Sequence[tuple[dict[str, Any], bytes]]) -> tuple[dict[str, Any], bytes]:
    """Join the documents and maps of several models to those of one page.

    Each row of the joined document has the family and the provenance of its own model.

    Args:
        parts: Document and bytes of all maps of each model, as `build_document` returns them. The
            maps of all models have the same precision. The first part of the name of the
            checkpoint, such as its run directory, precedes the titles of the rows.
    """
    rows: list[dict[str, Any]] = []
    notices, data = [], b""
    for document, maps in parts:
        base = 8 * len(data) // document["precision"]
        model = {name: document[name] for name in ("family", "provenance")}
        name = model["provenance"]["checkpoint"].split("/")[0]
        notices += [f"{name}: {notice}" for notice in document["notice"]]
        for row in document["rows"]:
            moved = [{**entry, "offset": entry["offset"] + base} for entry in row["maps"]]
            rows.append({**row, **model, "title": f"{name}: {row['title']}", "maps": moved})
        data += maps
    first = parts[0][0]
    title = f"Attention of {len(parts)} models"
    return {**first, "title": title, "notice": notices, "rows": rows}, data


def _row(
    view: View,
    compared: View | None,
    example: Example,
    writer: MapWriter,
    layers: Layers,
    is_first: bool,
) -> dict[str, Any]:
    """Return the row of an example, with the maps and curves of both models."""
    collector = Collector(writer, layers)
    row = view.row(example, collector, is_first)
    maps, curves = collector.maps, collector.curves
    if compared is not None:
        collector = Collector(writer, layers, model_index=1)
        second = compared.row(example, collector, is_first)
        if second["tokens"] != row["tokens"]:
            problem = "must have the same tokens or patches as the checkpoint for each input"
            raise InputError(problem, option="--compare")
        maps, curves = maps + collector.maps, curves + collector.curves
    empty: dict[str, Any] = {"image": None, "steps": [], "classes": []}
    return {**empty, **row, "maps": maps, "curves": curves}


def _few_layers(model: Model) -> tuple[int, ...]:
    """Return the first, the middle and the last layer of the deepest kind of attention."""
    last = max(layer for _, layer in attention_layers(model).values())
    return tuple(sorted({0, (last + 1) // 2, last}))


def weights_digest(model: Model) -> str:
    """Return a digest of the weights of a model, in 16 hexadecimal digits."""
    tensors = compute_digests({"weights": dict(model.state_dict())})
    total = zlib.crc32(repr(tensors["values"]).encode())
    return f"{total:08x}{sum(tensors['tensors'].values()) % 2**32:08x}"
