"""Content of a page of attention maps, computed from a model and examples.

The content has two parts. The document is a dictionary of JSON values with the keys `title`,
`family` (of the model), `precision`, `provenance`, `notice`, `rows` and `compare`. Each row is a
dictionary for one example. It holds the tokens, the predictions, the curves and an entry for each
attention map. The weights of all maps are stored outside the document, as one bytes object.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fourfold.analysis.attention_maps import attention_layers, select_layers
from fourfold.environment import commit
from fourfold.errors import InputError
from fourfold.explorer.inputs import Example
from fourfold.explorer.maps import Collector
from fourfold.explorer.views import View
from fourfold.families import lookup
from fourfold.layers.base_model import Model

ROW_BYTES = 3_000_000  # largest size in bytes of the maps of a row, compressed and in base64
FILE_BYTES = 15_000_000  # largest size in bytes of the maps of all rows together, likewise


class Settings(NamedTuple):
    """Options of the document of a page; `look` describes the first four."""

    layers: tuple[int, ...] | None = None
    precision: int = 8
    generate: int = 20
    truncate: bool = False
    command: str = ""  # made the page, which displays it
    checkpoint: str = ""  # name of the file, after that of its run
    name: str = ""  # of the run or model, by which the page calls it
    compared: str = ""  # name of the second model
    n_models: int = 1  # share the page and the bound on its size


def shown_name(path: str | Path) -> str:
    """Return the name of a run or model on the page, RUN/FILE for a checkpoint of a run.

    Example:
        >>> shown_name("runs/small"), shown_name("runs/small/checkpoints/last.ckpt")
        ('small', 'small/last.ckpt')
    """
    path = Path(path).absolute()
    is_in_run = path.parent.name == "checkpoints"
    return f"{path.parents[1].name}/{path.name}" if is_in_run else path.name


def make_view(model: Model, settings: Settings) -> View:
    """Return the view of a model in eval mode, which runs it and builds the page's content.

    Raises:
        InputError: The model has no attention, its family has no view, or it has fewer layers than
            `settings.layers` names.
    """
    select_layers(model, settings.layers, "--layers")
    make = lookup("views", model)
    if make is None:
        problem = f"is a {type(model).__name__}, for which there is no page"
        raise InputError(problem, option="the checkpoint")
    return make(model, settings.truncate, settings.generate)


def build_document(
    model: Model, examples: Sequence[Example], settings: Settings, other: Model | None = None
) -> tuple[dict[str, Any], bytes]:
    """Run a model on examples of its view, and return the document and the bytes of all maps.

    The page also shows the maps of a second model `other` of the same family and tokens.

    Raises:
        InputError: The model has no attention or no view, or `other` differs in family or tokens.
    """
    view = make_view(model, settings)
    compared = None if other is None else make_view(other, settings)
    if compared is not None and type(compared) is not type(view):
        problem = f"must be a model of the family {view.family}, got {compared.family}"
        raise InputError(problem, option="--compare")
    for each in filter(None, (view, compared)):
        each.prepare(examples)
    data, notices, rows = bytearray(), [], []
    budget = min(ROW_BYTES, FILE_BYTES // max(1, settings.n_models * len(examples)))
    for number, given in enumerate(examples):
        example = view.complete(given)
        begin = len(data)
        collect = partial(Collector, data, settings.precision)
        row = _row(view, compared, example, partial(collect, settings.layers), number == 0)
        size = len(zlib.compress(data[begin:])) * 4 // 3
        if size > budget and settings.layers is None:
            del data[begin:]
            few = _few_layers(model)
            row = _row(view, compared, example, partial(collect, with_heads=few), number == 0)
            notices.append(
                f"Row {number}: the heads of layers other than"
                f" {', '.join(map(str, few))} are left out, since the maps of"
                f" all heads would take {size / 1e6:.1f} MB; --layers chooses other layers."
            )
        rows.append(row)
    kind = type(model).__name__
    compared_name = settings.compared or f"{type(other).__name__} (other)"
    return {
        "title": f"Attention of {settings.name or settings.checkpoint or kind}",
        "family": view.family,
        "precision": settings.precision,
        "provenance": {
            "command": settings.command,
            "name": settings.name,
            "checkpoint": settings.checkpoint,
            "version": version("fourfold"),
            "commit": commit(),
            "model": kind,
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "notice": notices,
        "rows": rows,
        "compare": None if other is None else {"title": compared_name},
    }, bytes(data)


def join_documents(parts: Sequence[tuple[dict[str, Any], bytes]]) -> tuple[dict[str, Any], bytes]:
    """Join the documents and maps of several models, which have one precision, to one page.

    Each row has the family and the provenance of its own model, whose name is before its title.
    """
    rows: list[dict[str, Any]] = []
    notices, data = [], b""
    for document, maps in parts:
        base = 8 * len(data) // document["precision"]
        model = {name: document[name] for name in ("family", "provenance")}
        name = model["provenance"]["name"]
        notices += [f"{name}: {notice}" for notice in document["notice"]]
        for row in document["rows"]:
            moved = [{**entry, "offset": entry["offset"] + base} for entry in row["maps"]]
            rows.append({**row, **model, "title": f"{name}: {row['title']}", "maps": moved})
        data += maps
    title = f"Attention of {len(parts)} models"
    return {**parts[0][0], "title": title, "notice": notices, "rows": rows}, data


def _row(
    view: View,
    compared: View | None,
    example: Example,
    collect: Callable[..., Collector],
    is_first: bool,
) -> dict[str, Any]:
    """Run one or two models on an example with its target, and return its row of the document."""
    collector = collect()
    row = view.row(example, collector, is_first)
    maps, curves = collector.maps, collector.curves
    if compared is not None:
        collector = collect(model_index=1)
        if compared.row(example, collector, is_first)["tokens"] != row["tokens"]:
            problem = "must have the same tokens or patches as the checkpoint for each input"
            raise InputError(problem, option="--compare")
        maps, curves = maps + collector.maps, curves + collector.curves
    empty: dict[str, Any] = {"image": None, "steps": [], "classes": []}
    return {"title": example.title, **empty, **row, "maps": maps, "curves": curves}


def _few_layers(model: Model) -> tuple[int, ...]:
    """Return the indices of the first, the middle and the last layer of the deepest stack."""
    last = max(layer for _, layer in attention_layers(model).values())
    return tuple(sorted({0, (last + 1) // 2, last}))
