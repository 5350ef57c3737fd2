"""Attention maps and their statistics, recorded while a model runs and stored for the page.

A map is a matrix (T, S) of attention weights of one head, their mean over heads, or a rollout. The
entry of a map is a dictionary of JSON values that describes the map and tells its location in the
bytes of all maps. A token list is a list of texts in the page's document. The texts of a list, such
as "source", label the rows or the columns of maps.

Shapes: H heads, T queries, S keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fourfold.analysis.attention_flow import rollout
from fourfold.analysis.attention_maps import (
    Array,
    LayerAttention,
    attention_layers,
    select_layers,
    visit_attention,
)
from fourfold.analysis.attention_statistics import head_label, head_statistics
from fourfold.explorer.page import pack

DIGITS = 4  # significant digits to which statistics are rounded


class MapWriter:
    """Writer that appends the weights of attention maps to one byte array.

    Args:
        precision: Bits of a stored weight, 8 (quantized) or 16 (half floats), as for
            `fourfold.explorer.page.pack`.

    Attributes:
        data: Bytes of all maps that were added so far.
    """

    def __init__(self, precision: int) -> None:
        self.precision = precision
        self.data = bytearray()

    def add(
        self, name: str, weights: Array, queries: str, keys: str, *, model: int = 0, **fields: Any
    ) -> dict[str, Any]:
        """Append the weights of an attention map to `data`.

        Args:
            name: Name of the map, such as "self", "cross" or "rollout".
            weights: Weights (T, S) in [0, 1], or in the interval `range`.
            queries: Name of the token list that labels the rows, such as "target".
            keys: Name of the token list that labels the columns, such as "source".
            model: 0 for the model, 1 for the second model of a comparison.
            **fields: Further fields of the entry. `title` is the name that the page shows instead
                of the default. `layer` and `head` are indices. `triangle` is True if only the lower
                triangle is stored. `range` is [low, high], the interval of the values. `stats`
                holds the statistics by name, and `label` the label of the head.

        Returns:
            Entry of the map in the page's document, a dictionary with the arguments, the shape and
            the offset of the map in `data`.
        """
        low, high = fields.get("range", (0.0, 1.0))
        scaled = (weights - low) / (high - low) if high > low else np.zeros_like(weights)
        triangle = fields.pop("triangle", False)
        packed, _ = pack([scaled], [triangle], self.precision)
        offset = len(self.data) * 8 // self.precision
        self.data += packed
        entry = {"name": name, "model": model, "layer": None, "head": None}
        entry |= {"queries": queries, "keys": keys, "shape": list(weights.shape)}
        return entry | {
            "triangle": triangle,
            "offset": offset,
            "stats": {},
            "label": None,
            **fields,
        }


@dataclass(frozen=True)
class Kind:
    """Options for the maps of one kind of attention, such as "self", "encoder" or "cross".

    Args:
        queries: Name of the token list of the queries.
        keys: Name of the token list of the keys.
        name: Name of the maps on the page; None means the name of the kind.
        ids: Token ids (S,) of the keys, for the induction score; None omits this score.
        separators: Bool (S,), True at separators such as [SEP], for the weight on separators; None
            omits this statistic.
        distances: Distances (T, S) between queries and keys, which are patches; None means the
            distance in tokens.
        is_self: True if queries and keys are the same tokens (self-attention).
        first_queries: Number of queries, from the first, whose rows are stored; None stores all.
        rollout: Name of the attention rollout of this kind on the page; None computes no rollout.
        total: Name of the map (1, S) of the weights summed over all queries; None computes no sum.
    """

    queries: str
    keys: str
    name: str | None = None
    ids: Tensor | None = None
    separators: Tensor | None = None
    distances: Tensor | None = None
    is_self: bool = True
    first_queries: int | None = None
    rollout: str | None = None
    total: str | None = None


@dataclass(frozen=True)
class Layers:
    """Choice of the layers whose maps are stored.

    Indices count the layers of each kind of attention from 0. Negative indices count from the last
    layer.

    Args:
        only: Indices of the layers whose maps are stored; None means all layers.
        with_heads: Indices of the layers of which the map of each head is stored; None means all
            layers. For other layers, only the mean over the heads is stored.
    """

    only: tuple[int, ...] | None = None
    with_heads: tuple[int, ...] | None = None


class Collector:
    """Collector of the attention maps and curves of one example, which records them in a model.

    Args:
        writer: Writer that stores the weights of the maps.
        layers: Layers whose maps are stored.
        model_index: 0 for the model, 1 for the second model of a comparison.

    Attributes:
        maps: List with a dictionary for each map, the result of `MapWriter.add`.
        curves: List of curves, such as the entropy by layer. A curve is a dictionary with a title,
            axis labels, a label, and the lists `x` and `y`.
        centers: Predicted centre of the window of each target token, in source positions from 0, if
            the model has local-p attention (Luong et al. 2015); otherwise None.
    """

    def __init__(self, writer: MapWriter, layers: Layers, model_index: int = 0) -> None:
        self.writer = writer
        self.layers = layers
        self.model_index = model_index
        self.maps: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.centers: list[float] | None = None

    def add(self, name: str, weights: Array, queries: str, keys: str, **fields: Any) -> None:
        """Store a map with the writer, and append its entry to `maps`.

        Args:
            name: Name of the map, such as "rollout".
            weights: Weights (T, S).
            queries: Name of the token list that labels the rows.
            keys: Name of the token list that labels the columns.
            **fields: Further fields of the entry, such as `layer` and `range` (see
                `MapWriter.add`).
        """
        options = {"model": self.model_index, **fields}
        self.maps.append(self.writer.add(name, weights, queries, keys, **options))

    def collect(
        self, model: nn.Module, forward: Callable[[], object], kinds: Mapping[str, Kind]
    ) -> None:
        """Run a model on one sequence, and store its attention maps, rollouts and curves.

        Args:
            model: The model, in eval mode.
            forward: Function that runs the model once on a batch of one sequence.
            kinds: Options of each kind of attention, by its name in `LayerAttention`, such as
                "self" or "cross". Attention of other kinds is not recorded.

        Raises:
            InputError: The model has no attention, or lacks a layer that `layers.only` names.
        """
        stored = set(select_layers(model, self.layers.only, "--layers"))
        detailed = set(select_layers(model, self.layers.with_heads)) & stored
        places = attention_layers(model)
        means: dict[str, list[Array]] = {name: [] for name in kinds}
        points: dict[tuple[str, str], list[tuple[int, list[float], float]]] = {}

        def visit(record: LayerAttention) -> None:
            kind = kinds[record.name]
            weights = record.weights[:1].float()
            mean = weights.mean(1, keepdim=True)
            if kind.rollout:
                means[record.name].append(mean[0, 0].cpu().numpy())
            if record.centers is not None:
                self.centers = [round(float(x) - 1, 3) for x in record.centers[0]]  # from 0
            statistics = self._statistics(weights, record, kind)
            for key in ("entropy", "distance"):
                if key in statistics[0]:
                    heads = [entry[key][0] for entry in statistics[1:]]
                    point = (record.layer, heads, statistics[0][key][1])
                    points.setdefault((kind.name or record.name, key), []).append(point)
            if record.path in stored:
                has_heads = record.path in detailed and not _has_one_map(model, record.path)
                maps = torch.cat([mean, weights], 1) if has_heads else mean
                self._add_layer(maps[0].cpu().numpy(), statistics, record, kind)

        paths = [path for path, (name, _) in places.items() if name in kinds]
        with torch.no_grad():
            visit_attention(model, forward, visit, paths)
        for name, matrices in means.items():
            if matrices:
                self._add_rollout(np.stack(matrices), kinds[name], stored, places, name)
        self._add_curves(points)

    def _statistics(
        self, weights: Tensor, record: LayerAttention, kind: Kind
    ) -> list[dict[str, list[float]]]:
        """Compute the statistics of each head in one layer.

        Args:
            weights: Weights (1, H, T, S).
            record: The layer, with the pairs of query and key that its mask allows.
            kind: Options of the kind of attention.

        Returns:
            List of 1 + H dictionaries from the name of a statistic to a pair. The pair holds the
            value of the head and the value of uniform attention with the same mask. The first
            dictionary holds the mean of each statistic over the heads.
        """
        found = head_statistics(
            weights,
            record.allowed[:1],
            ids=None if kind.ids is None else kind.ids[None],
            distances=kind.distances,
            separators=None if kind.separators is None else kind.separators[None],
            is_self=kind.is_self,
        )
        if kind.distances is not None:  # patches have no order
            found = {name: x for name, x in found.items() if name not in ("previous", "next")}
        pairs = {}
        for name, pair in found.items():
            heads = torch.stack([pair.value[0], pair.uniform[0]], -1)
            pairs[name] = torch.cat([heads.mean(0, keepdim=True), heads]).tolist()
        return [
            {name: [_rounded(x) for x in values[i]] for name, values in pairs.items()}
            for i in range(1 + weights.shape[1])
        ]

    def _add_layer(
        self, maps: Array, statistics: list[Any], record: LayerAttention, kind: Kind
    ) -> None:
        allowed = record.allowed[0, 0]
        is_square = allowed.shape[0] == allowed.shape[1] and kind.first_queries is None
        triangle = is_square and len(allowed) > 1 and not bool(allowed.triu(1).any())
        if kind.total:
            total = maps[0].sum(0, keepdims=True)
            fields = {"layer": record.layer, "range": [0.0, float(total.max())]}
            self.add(kind.total, total, "sum", kind.keys, **fields)
        for i, weights in enumerate(maps):
            self.add(
                kind.name or record.name,
                weights[: kind.first_queries],
                kind.queries,
                kind.keys,
                layer=record.layer,
                head=i - 1 if i else None,
                triangle=triangle,
                stats=statistics[i],
                label=head_label(statistics[i]),
            )

    def _add_rollout(
        self, means: Array, kind: Kind, stored: set[str], places: dict[str, Any], name: str
    ) -> None:
        kept = {layer for path, (of, layer) in places.items() if of == name and path in stored}
        triangle = not np.triu(means, 1).any() and means.shape[-1] > 1
        for layer, matrix in enumerate(rollout(means)):
            if layer in kept:
                rows = matrix[: kind.first_queries]
                square = triangle and kind.first_queries is None
                fields: dict[str, Any] = {"layer": layer, "triangle": square}
                if name == "encoder":
                    fields["title"] = "rollout of the encoder (layers 0 to this one together)"
                self.add(kind.rollout or "rollout", rows, kind.queries, kind.keys, **fields)

    def _add_curves(self, points: dict[tuple[str, str], Any]) -> None:
        """Append curves of the statistics by layer to `curves`.

        There are three curves for each statistic: the mean over heads, the value of each head as a
        point, and the value of uniform attention. A kind with one layer gets no curves.

        Args:
            points: For each pair (kind of attention, "entropy" or "distance"), a list with a triple
                for each layer: index of the layer, value of each head, value of uniform attention.
        """
        names = {
            "entropy": ("Entropy", "entropy in nats"),
            "distance": ("Mean distance", "distance"),
        }
        for (name, key), found in points.items():
            if len(found) < 2:
                continue
            word, axis = names[key]
            layers = [layer for layer, *_ in found]
            common = {"title": f"{word} of {name} by layer", "xlabel": "layer", "ylabel": axis}
            common["map"] = name  # the page shows the curves of the map that is chosen
            means = [_rounded(float(np.mean(heads))) for _, heads, _ in found]
            spread = [(layer, value) for layer, heads, _ in found for value in heads]
            xs, ys = (list(column) for column in zip(*spread, strict=True))
            suffix = " (other)" if self.model_index else ""
            self.curves += [
                {**common, "label": f"mean of heads{suffix}", "x": layers, "y": means},
                {**common, "label": f"heads{suffix}", "x": xs, "y": ys, "points": True},
            ]
            if not self.model_index:
                uniform = [value for *_, value in found]
                self.curves.append({**common, "label": "uniform", "x": layers, "y": uniform})


def _has_one_map(model: nn.Module, path: str) -> bool:
    return getattr(model.get_submodule(path), "n_heads", 0) == 0


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
