"""Edits: changes and records of the tensors inside a model, which its modules apply themselves.

`Attention`, `Block`, `FeedForward` and `Stack` have an attribute `edits`, which is None outside the
contexts `fourfold.edit` and `fourfold.record`. The tensors of a module are its slots. Shapes: B
batch, H heads, Tq queries, Tk keys, D any width.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError


class Columns(NamedTuple):
    """Columns of the tokens of a forward call: that of the first query, and one after the last."""

    first: int = 0
    end: int | None = None
    keys: Tensor | None = None  # padding mask of the tokens so far
    memory_keys: Tensor | None = None  # padding mask of the memory
    problem: str = ""  # reason why columns are not known


call_columns: ContextVar[Columns] = ContextVar("call_columns", default=Columns())  # noqa: B039


class Place(NamedTuple):
    """Name, token axis and first column of a tensor that an operation gets.

    `axis` is the dimension of the tokens, or of the queries of attention weights. `first` is the
    column of the first token along it, counted from the first token of the sequence, also in cached
    decoding, and `first_key` that of the first key of attention weights.
    """

    name: str
    slot: str
    axis: int
    first: int
    first_key: int
    call: Columns

    def check_columns(self, *, of_memory: bool = False) -> None:
        """Raise InputError if the columns of the tokens, or of the memory, are not positions."""
        keys = self.call.memory_keys if of_memory else self.call.keys
        problem = "" if of_memory else self.call.problem
        if keys is not None and not bool(keys[:, 0].all()):
            problem = "with padding on the left"
        if problem:
            raise InputError(f"must be None {problem}", option=f"positions of {self.name}")


class Edit(NamedTuple):
    """Operation on one slot of a module, or on one unit (a head or a neuron) of the slot.

    The operation gets the tensor without the dimension of the units, and returns another tensor of
    the same shape, or the tensor itself.
    """

    owner: object  # the context that the edit belongs to
    name: str
    slot: str
    unit: int | None
    operation: Callable[[Tensor, Place], Tensor]
    is_cross: bool = False
    changes: bool = True  # False for records

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the operation to the tensor x of the slot, and return a tensor of its layout."""
        dim = -1 if self.slot == "neuron" else 1
        part = x if self.unit is None else x.select(dim, self.unit)
        y = self.operation(part, self._place(x))
        if y is part:
            return x
        wanted = tuple(part.shape), part.dtype, part.device
        found = (tuple(y.shape), y.dtype, y.device) if isinstance(y, Tensor) else y
        if found != wanted:
            message = f"must return a tensor of {wanted}, got {found}"
            raise InputError(message, option=f"the edit of {self.name}")
        if torch._C._are_functorch_transforms_active():  # vmap cannot write into a plain tensor
            return y if self.unit is None else torch.select_scatter(x, y, dim, self.unit)
        # Kernels depend on the layout in memory, and their rounding depends on the kernel.
        overlaps = 0 in x.stride()
        z = (
            torch.empty_like(x)
            if overlaps
            else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        )
        z.copy_(x)  # all that computed x keeps a gradient, which is 0 where x is replaced
        (z if self.unit is None else z.select(dim, self.unit)).copy_(y)
        return z

    def _place(self, x: Tensor) -> Place:
        columns = call_columns.get()
        n_keys = x.shape[-1] if self.slot in ("weights", "scores") else x.shape[-2]
        unknown = self.is_cross or columns.end is None
        first_key = 0 if unknown else (columns.end or 0) - n_keys  # a window drops the first keys
        first = first_key if self.slot in ("k", "v") else columns.first
        axis = -1 if self.slot == "neuron" and self.unit is not None else -2
        return Place(self.name, self.slot, axis, first, first_key, columns)


class Edits:
    """Edits of one module, in the order in which their contexts were entered."""

    def __init__(self, entries: Sequence[Edit]) -> None:
        self.entries = tuple(entries)
        # A cache is only valid for the edits under which it was filled. Records change nothing.
        self.stamp = tuple(dict.fromkeys(edit.owner for edit in entries if edit.changes))
        self.has_weights = any(edit.slot in ("weights", "scores") for edit in entries)

    def apply(self, slot: str, x: Tensor) -> Tensor:
        """Apply the edits of a slot to its tensor x."""
        if torch.compiler.is_exporting():
            self.__reduce__()
        for edit in self.entries:
            if edit.slot == slot:
                x = edit(x)
        return x

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "must not be copied, pickled or exported within fourfold.edit or fourfold.record",
            option="the model",
        )


def check_cache(edits: Edits | None, cache: Any, first: int) -> None:
    """Check that the `first` tokens of a cache were computed under the active edits.

    Raises:
        InputError: They were computed under others.
    """
    stamp = () if edits is None else edits.stamp
    if first > 0 and cache.edits != stamp:
        message = "holds tokens that were computed under other edits; use a new cache"
        raise InputError(message, option="cache")
    cache.edits = stamp


def begin(
    edits: Edits | None, cache: KVCache | None, q_len: int, keys: Tensor | None, memory: Any
) -> None:
    """Set the columns of the `q_len` tokens of a forward call, whose cache has counted them.

    `keys` and `memory` are the padding masks of the tokens and of the memory.
    """
    columns = Columns(end=q_len, keys=keys, memory_keys=memory)
    if cache is not None:
        first = cache.length - q_len
        check_cache(edits, cache, first)
        problem = "" if cache.has_columns else "in beam search, whose cache mixes hypotheses"
        columns = Columns(first, cache.length, cache.keys, memory, problem)
        if problem:
            columns = columns._replace(keys=None)
    call_columns.set(columns)


def has_edits(model: nn.Module) -> bool:
    """Return True within `fourfold.edit` or `fourfold.record` for the model."""
    return any(getattr(module, "edits", None) is not None for module in model.modules())


def edit_weights(module: Any) -> None:
    """Let an `Attention` apply its edits of scores and weights; a recurrent one does so itself."""
    normalize = getattr(module, "normalize", None)
    if normalize is None:
        return

    def edited(scores: Tensor) -> Tensor:
        scores = module.edits.apply("scores", scores)
        # A query without keys has weights of NaN here, which `attention_weights` replaces later.
        weights = normalize(scores).masked_fill(scores == float("-inf"), 0.0)
        return module.edits.apply("weights", weights)

    edited.replaced = vars(module).get("normalize")  # type: ignore[attr-defined]
    module.normalize = edited


def restore_weights(module: Any) -> None:
    """Undo `edit_weights`."""
    if (edited := vars(module).pop("normalize", None)) and edited.replaced is not None:
        module.normalize = edited.replaced
