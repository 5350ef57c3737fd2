"""Attention maps and their statistics, recorded while a model runs and stored for the page.

A map is a matrix (T, S) of attention weights of one head, their mean over heads, or a rollout. The
entry of a map is a dictionary of JSON values that describes the map and tells its location in the
bytes of all maps. A token list is a list of texts in the page's document. The texts of a list, such
as "source", label the rows or the columns of maps.

Shapes: H heads, T queries, S keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

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
from fourfold.layers.base_model import Model

T = TypeVar("T")
# Title and axis of the curve of a statistic.
CURVES = {"entropy": ("Entropy", "entropy in nats"), "distance": ("Mean distance", "distance")}
DIGITS = 4  # significant digits to which statistics are rounded


@dataclass(frozen=True)
class Kind:
    """Options for the maps of one kind of attention, such as "self", "encoder" or "cross"."""

    queries: str  # name of the token list of the queries
    keys: str
    name: str | None = None  # of the maps on the page; None means the name of the kind
    ids: Tensor | None = None  # (S,) token ids of the keys, for the induction score
    separators: Tensor | None = None  # (S,) bool, for the weight on separators such as [SEP]
    distances: Tensor | None = None  # (T, S) between patches; None means the distance in tokens
    is_self: bool = True  # queries and keys are the same tokens
    first_queries: int | None = None  # number of queries whose rows are stored; None means all
    rollout: str | None = None  # name of the attention rollout; None computes no rollout
    total: str | None = None  # name of the map (1, S) of the weights summed over all queries


@dataclass(eq=False)
class Collector:
    """Collector of the attention maps and curves of one example, which records them in a model.

    Args:
        data: Bytes of all maps of the page, to which the weights are appended.
        precision: Bits of a stored weight, 8 (quantized) or 16 (half floats).
        layers: Indices of the layers whose maps are stored, counted for each kind of attention from
            0, negative ones from the last layer; None means all layers.
        with_heads: Indices of the layers whose heads are stored; of other layers, only the mean
            over heads is stored.
        model_index: 0 for the model, 1 for the second model of a comparison.
        maps: Entries of the maps.
        curves: Curves, such as the entropy by layer: dictionaries of titles, `x` and `y`.
        centers: Predicted centre of the window of each target token, in source positions from 0, if
            the model has local-p attention (Luong et al. 2015); otherwise None.
    """

    data: bytearray
    precision: int
    layers: tuple[int, ...] | None = None
    with_heads: tuple[int, ...] | None = None
    model_index: int = 0
    maps: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    centers: list[float] | None = None

    def add(self, name: str, weights: Array, queries: str, keys: str, **fields: Any) -> None:
        """Store the weights (T, S) of a map and its entry.

        `queries` and `keys` are the names of the token lists that label rows and columns. Further
        fields of the entry are `title` (shown instead of the default), `layer`, `head`, `triangle`
        (only the lower triangle is stored), `range` (interval of the values, otherwise [0, 1]),
        `stats` by name, and `label` of the head.
        """
        entry: dict[str, Any] = {"name": name, "model": self.model_index}
        entry |= {"layer": None, "head": None}
        entry |= {"queries": queries, "keys": keys, "shape": list(weights.shape)}
        entry |= {"triangle": False, "stats": {}, "label": None, **fields}
        low, high = fields.get("range", (0.0, 1.0))
        scaled = (weights - low) / (high - low) if high > low else np.zeros_like(weights)
        entry["offset"] = len(self.data) * 8 // self.precision
        self.data += pack(scaled, entry["triangle"], self.precision)
        self.maps.append(entry)

    def collect(self, model: Model, forward: Callable[[], T], kinds: Mapping[str, Kind]) -> T:
        """Run a model on one sequence, store its maps and curves, and return its output.

        `forward` runs the model once on a batch of one sequence. `kinds` has the options of each
        kind of attention by its name in `LayerAttention`; other kinds are not recorded.

        Raises:
            InputError: The model has no attention, or lacks a layer that `layers` names.
        """
        stored = set(select_layers(model, self.layers, "--layers"))
        detailed = set(select_layers(model, self.with_heads)) & stored
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
                n_heads = getattr(model.get_submodule(record.path), "n_heads", 0)
                has_heads = record.path in detailed and n_heads > 0
                maps = torch.cat([mean, weights], 1) if has_heads else mean
                self._add_layer(maps[0].cpu().numpy(), statistics, record, kind)

        paths = [path for path, (name, _) in places.items() if name in kinds]
        outputs: list[T] = []
        with torch.no_grad():
            visit_attention(model, lambda: outputs.append(forward()), visit, paths)
        for name, matrices in means.items():
            if matrices:
                self._add_rollout(np.stack(matrices), kinds[name], stored, places, name)
        self._add_curves(points)
        return outputs[0]

    def _statistics(
        self, weights: Tensor, record: LayerAttention, kind: Kind
    ) -> list[dict[str, list[float]]]:
        """Return the statistics of the mean over heads and of each head, from weights (1, H, T, S).

        A statistic is a pair: its value, and its value for uniform attention with the same mask.
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
            {name: [short_number(x) for x in values[i]] for name, values in pairs.items()}
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
        """Append the mean over heads, the values of the heads and that of uniform attention.

        The key of `points` is a kind of attention and a statistic, the value a triple by layer.
        """
        for (name, key), found in points.items():
            if len(found) < 2:
                continue
            word, axis = CURVES[key]
            layers = [layer for layer, *_ in found]
            common = {"title": f"{word} of {name} by layer", "xlabel": "layer", "ylabel": axis}
            common["map"] = name  # the page shows the curves of the map that is chosen
            means = [short_number(float(np.mean(heads))) for _, heads, _ in found]
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


def short_number(value: float) -> float:
    """Return a number rounded to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")
