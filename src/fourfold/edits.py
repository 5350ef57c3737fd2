"""Operations for `fourfold.edit`, and the contexts `edit` and `record`.

A name of a tensor is [STACK.]LAYER.PART.SLOT[.INDEX], in which * stands for any text. STACK is the
path of the stack, such as encoder, and left out if a model has one stack only. PART is self, cross
or ff:

=================================  ===================================================
3.in, 3.out                        residual stream (B, T, D) before and after block 3
3.self.in, 3.cross.in, 3.ff.in     what only this sub-layer reads (B, T, D)
3.self.out, 3.cross.out, 3.ff.out  what it adds to the residual stream (B, T, D)
3.self.q.N, 3.self.k.N, .v.N       queries, keys and values (B, T, Dh) of head N, rotated
3.self.weights.N                   attention weights (B, Tq, Tk) of head N
3.self.head.N                      output (B, T, Dv) of head N, before the output matrix
3.ff.neuron.N                      hidden neuron N (B, T), the input of the second matrix
=================================  ===================================================

Without the index, a name means the tensor of all heads (B, H, T, D), or neurons (B, T, F). k and v
have an index for each head of keys and values. A recurrent decoder has 0.cross.weights.0 and
0.cross.head.0. Positions are columns, counted from the first token of the sequence.

Source of the traps that these names avoid: hooks on the output of an attention module are after its
output matrix, where heads are mixed already.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import Stack
from fourfold.core.edits import (
    Columns,
    Edit,
    Edits,
    Place,
    call_columns,
    edit_weights,
    restore_weights,
)
from fourfold.core.validation import suggestion
from fourfold.errors import InputError

PARTS = {"attn": "self", "cross_attn": "cross", "ff": "ff"}


class Target(NamedTuple):
    """Tensor that can be edited: its module and slot, and its number of heads or neurons."""

    module: nn.Module
    slot: str
    size: int | None = None
    is_cross: bool = False


class Operation:
    """Operation of `edit`: a function of a tensor and its `Place`.

    `to_json` is the form that `load_edits` reads, or None if there is none. `slots` are the slots
    to which it applies, by default all; scores are those of attention weights.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Place], Tensor],
        to_json: dict[str, Any] | None = None,
        slots: tuple[str, ...] = (),
    ) -> None:
        self.function = function
        self.to_json = to_json
        self.slots = slots

    def __call__(self, x: Tensor, place: Place) -> Tensor:
        """Return the changed tensor."""
        return self.function(x, place)


def set(value: Tensor | float, positions: Sequence[int] | None = None) -> Operation:
    """Replace a tensor by a value that is broadcast to it. Its gradient is then 0."""

    def function(x: Tensor, place: Place) -> Tensor:
        replaced = torch.ones_like(x, dtype=torch.bool)
        # The replaced values keep a place in the graph, so that DDP finds no unused parameters.
        if not isinstance(value, Tensor):
            return _at(x.masked_fill(replaced, value), x, positions, place)
        return _at(torch.where(replaced, _like(value, x, place), x), x, positions, place)

    is_zero = not isinstance(value, Tensor) and value == 0.0 and positions is None
    return Operation(function, {"operation": "zero"} if is_zero else None)


zero = set(0.0)


def add(value: Tensor | float, positions: Sequence[int] | None = None) -> Operation:
    """Add a value that is broadcast to the tensor, such as a steering vector."""
    return Operation(lambda x, place: _at(x + _like(value, x, place), x, positions, place))


def scale(factor: Tensor | float, positions: Sequence[int] | None = None) -> Operation:
    """Multiply by a factor, such as a gate that is a parameter (Michel et al. 2019)."""
    is_number = not isinstance(factor, Tensor) and positions is None
    return Operation(
        lambda x, place: _at(x * _like(factor, x, place), x, positions, place),
        {"operation": "scale", "factor": factor} if is_number else None,
    )


def patch(run: "Run", positions: Sequence[int] | None = None) -> Operation:
    """Replace a tensor by the one of the same name in a run of the same length."""

    def function(x: Tensor, place: Place) -> Tensor:
        return _at(_like(run[place.name], x, place, exact=True), x, positions, place)

    return Operation(function)


def resample(run: "Run", order: Sequence[int] | None = None) -> Operation:
    """Replace row i by row `order[i]` of a run; None moves each row by one.

    Raises InputError if a row would be replaced by itself only, because the run has one row.
    """

    def function(x: Tensor, place: Place) -> Tensor:
        other = run[place.name]
        if order is None and len(other) < 2:
            raise InputError("must have at least two rows, got 1", option="run")
        rows = other.roll(-1, 0) if order is None else other[list(order)]
        return _like(rows, x, place, exact=True)

    return Operation(function)


def mean(run: "Run", positions: Sequence[int] | None = None) -> Operation:
    """Replace each token's vector by its mean over the real tokens of a run.

    The run should be of other data: the mean over the evaluated batch contains its own values. The
    attention weights have no mean, because their rows have different lengths.
    """

    def function(x: Tensor, place: Place) -> Tensor:
        return _at(_like(run.mean(place), x, place).expand_as(x), x, positions, place)

    return Operation(function, None, ("in", "out", "q", "k", "v", "head", "neuron"))


def hide(keys: Sequence[int], queries: Sequence[int] | None = None) -> Operation:
    """Forbid attention to keys before the softmax, so that the other weights grow.

    Source: attention knockout, Geva et al. 2023, section 4. A query without keys gets weights of 0.
    """

    def function(scores: Tensor, place: Place) -> Tensor:
        return scores.masked_fill(_pairs(scores, keys, queries, place), float("-inf"))

    form = {"operation": "hide", "keys": list(keys), "queries": queries}
    return Operation(function, form, ("scores",))


def drop(keys: Sequence[int], queries: Sequence[int] | None = None) -> Operation:
    """Set attention weights of keys to 0 after the softmax; the row then sums to less than 1."""

    def function(weights: Tensor, place: Place) -> Tensor:
        return weights.masked_fill(_pairs(weights, keys, queries, place), 0.0)

    form = {"operation": "drop", "keys": list(keys), "queries": queries}
    return Operation(function, form, ("weights",))


def dump_edits(edits: Mapping[str, Operation]) -> str:
    """Return edits as JSON, if all are `zero`, `scale` by a number, `hide` or `drop`."""
    for name, operation in edits.items():
        if getattr(operation, "to_json", None) is None:
            message = "must be zero, scale by a number, hide or drop at all positions"
            raise InputError(message, option=f"the edit of {name}")
    return json.dumps({name: operation.to_json for name, operation in edits.items()})


def load_edits(text: str) -> dict[str, Operation]:
    """Return the edits that `dump_edits` wrote."""
    makers: Any = {"zero": lambda: zero, "scale": scale, "hide": hide, "drop": drop}
    found = {}
    for name, form in json.loads(text).items():
        options = dict(form)
        if (kind := options.pop("operation", None)) not in makers:
            problem = f"must be one of {', '.join(makers)}, got {kind!r}"
            raise InputError(problem, option=f"the operation of {name}")
        found[name] = makers[kind](**options)
    return found


class Run(Mapping[str, Tensor]):
    """Recorded tensors by name. In cached decoding, the tokens of all calls are concatenated."""

    def __init__(self, mask: Tensor | Mapping[str, Tensor] | None) -> None:
        self._mask = mask
        self._tensors: dict[str, Tensor] = {}
        self._means: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of a name.

        Raises:
            InputError: It was not recorded.
        """
        if name not in self._tensors:
            raise InputError(f"must have {name}, which was not recorded", option="run")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of their computation."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)

    def store(self, x: Tensor, place: Place, grad: bool) -> None:
        """Keep a tensor, or append the tokens of a later call of cached decoding."""
        if not grad:
            with torch.inference_mode(False):  # a copy that later runs can use for gradients
                x = x.detach().clone()
        before = self._tensors.get(place.name)
        if before is not None and place.slot not in ("k", "v") and place.first > 0:
            if len(before) != len(x) or before.shape[place.axis] != place.first:
                message = "must be one sequence of calls with the same rows"
                raise InputError(message, option=f"the record of {place.name}")
            if place.slot == "weights":  # later queries have more keys
                before = nn.functional.pad(before, (0, x.shape[-1] - before.shape[-1]))
            x = torch.cat([before, x], place.axis)
        self._tensors[place.name] = x
        self._means.pop(place.name, None)

    def mean(self, place: Place) -> Tensor:
        """Return the mean over rows and real tokens, computed in at least fp32."""
        if place.name not in self._means:
            x = self[place.name]
            y = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(place.axis, 1)
            mask = self._mask
            if isinstance(mask, Mapping):
                of_memory = ".cross.k" in place.name or ".cross.v" in place.name
                name = "encoder." if of_memory else place.name
                mask = next((m for stack, m in mask.items() if name.startswith(f"{stack}.")), None)
            if mask is not None:
                if mask.shape != y.shape[:2]:
                    message = f"must have the shape {tuple(y.shape[:2])} of the tokens of"
                    raise InputError(
                        f"{message} {place.name}, got {tuple(mask.shape)}", option="mask of the run"
                    )
                self._means[place.name] = y[mask].mean(0)
            else:
                self._means[place.name] = y.flatten(0, 1).mean(0)
        found = self._means[place.name]  # (H, D), (D,), (F,) or ()
        return found if place.axis == -1 else found.unsqueeze(-2)


@contextmanager
def edit(
    model: nn.Module, edits: Mapping[str, Operation | Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    """Change tensors inside a model in all its calls in this context.

    Evaluation, training steps, `generate`, `beam_search` and `attention_maps` see the edits. The
    context may be nested; edits apply in the order of entry. The model itself is not changed.

    Args:
        model: A model of the package, of any family.
        edits: Operation by name, or a function that returns a new tensor of the same shape.

    Raises:
        InputError: A name matches nothing, or an operation does not suit its tensor.

    Example:
        >>> import fourfold, torch
        >>> from fourfold.edits import zero
        >>> model = fourfold.create("gpt2", n_layers=2, d_model=32, n_heads=4, vocab_size=50).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> with fourfold.edit(model, {"1.self.head.3": zero}):
        ...     logits = model(ids)
        >>> torch.equal(logits, model(ids))
        False
    """
    owner = object()
    entries = []
    for pattern, operation in edits.items():
        if not isinstance(operation, Operation):
            operation = Operation(_plain(operation, pattern))
        for name, target, index in _matches(model, pattern):
            slot = target.slot
            if slot == "weights" and "scores" in operation.slots:
                slot = "scores"
            if operation.slots and slot.rpartition(".")[2] not in operation.slots:
                allowed = ", ".join(operation.slots).replace("scores", "weights")
                message = f"must be for a tensor of the slots {allowed}"
                raise InputError(message, option=f"the edit of {name}")
            entry = Edit(owner, name, slot, index, operation, target.is_cross)
            entries.append((target.module, entry))
    with _installed(model, owner, entries):
        yield


@contextmanager
def record(
    model: nn.Module,
    *patterns: str,
    mask: Tensor | Mapping[str, Tensor] | None = None,
    grad: bool = False,
) -> Iterator[Run]:
    """Record tensors of the calls of a model in this context.

    Args:
        model: A model of the package, of any family.
        *patterns: Names of the tensors, in which * stands for any text.
        mask: Bool (B, T), True for real tokens, for means; or one by stack, such as "encoder".
        grad: Keep the graph, for gradients with respect to the recorded tensors.

    Example:
        >>> import fourfold, torch
        >>> model = fourfold.create("gpt2", n_layers=2, d_model=32, n_heads=4, vocab_size=50).eval()
        >>> with fourfold.record(model, "1.self.head.*") as run:
        ...     logits = model(torch.tensor([[1, 2, 3]]))
        >>> {name: tuple(x.shape) for name, x in run.items()}["1.self.head.3"]
        (1, 3, 8)
    """
    owner, run = object(), Run(mask)

    def keep(x: Tensor, place: Place) -> Tensor:
        x = x.clone() if grad else x  # the model goes on with what is stored
        run.store(x, place, grad)
        return x

    entries = [
        (target.module, Edit(owner, name, target.slot, index, keep, target.is_cross, False))
        for pattern in patterns
        for name, target, index in _matches(model, pattern)
    ]
    with _installed(model, owner, entries):
        yield run


def edit_targets(model: nn.Module) -> dict[str, Target]:
    """Return the tensors of a model that can be edited, by name without index.

    Example:
        >>> import fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, d_model=32, n_heads=4, vocab_size=50)
        >>> targets = edit_targets(model)
        >>> list(targets)[:6], targets["0.self.head"].size
        (['0.in', '0.out', '0.self.in', '0.self.out', '0.self.q', '0.self.k'], 4)
    """
    found: dict[str, Target] = {}
    for path, module in model.named_modules():
        if isinstance(module, Stack):
            stack = path.removesuffix("stack").rstrip(".")
            for i, block in enumerate(module.blocks):
                _add_block(found, f"{stack}.{i}" if stack else str(i), block)
        elif path.endswith("cross_attn") and not isinstance(module, Attention):  # recurrent
            for slot in ("weights", "head"):
                found[f"0.cross.{slot}"] = Target(module, slot, 1, True)
    return found


def _add_block(found: dict[str, Target], name: str, block: Any) -> None:
    found[f"{name}.in"] = Target(block, "in")
    found[f"{name}.out"] = Target(block, "out")
    for child, part in PARTS.items():
        module = getattr(block, child, None)
        if module is None:
            continue
        for slot in ("in", "out"):
            found[f"{name}.{part}.{slot}"] = Target(block, f"{child}.{slot}")
        if part == "ff":
            found[f"{name}.ff.neuron"] = Target(module, "neuron", module.down.in_features)
            continue
        for slot in ("q", "k", "v", "weights", "head"):
            size = module.n_kv_heads if slot in ("k", "v") else module.n_heads
            found[f"{name}.{part}.{slot}"] = Target(module, slot, size, part == "cross")


def _matches(model: nn.Module, pattern: str) -> list[tuple[str, Target, int | None]]:
    """Return name, target and index of all tensors that a pattern means."""
    targets = edit_targets(model)
    found: list[tuple[str, Target, int | None]] = []
    stem, _, last = pattern.rpartition(".")
    for name, target in targets.items():
        # "*.head" is the tensor of all heads and "*.head.*" each head; "*" alone is each head, too.
        if target.size is None or name.rpartition(".")[2] == last:
            if fnmatchcase(name, pattern):
                found.append((name, target, None))
        elif fnmatchcase(name, stem) or "*" in pattern:
            indexed = ((f"{name}.{i}", i) for i in range(target.size))
            found.extend((full, target, i) for full, i in indexed if fnmatchcase(full, pattern))
    if found:
        return found
    names = list(targets)
    hint = suggestion(pattern, names)
    nearest = targets.get(stem)
    if nearest is not None and nearest.size is not None and last.isdecimal():
        hint = f"; {stem} has the indices 0 to {nearest.size - 1}"
        module: Any = nearest.module
        if nearest.slot in ("k", "v") and int(last) < module.n_heads:
            group = int(last) * module.n_kv_heads // module.n_heads
            hint += f", and query head {last} reads {stem}.{group}"
    raise InputError(f"must be a tensor of the model, got {pattern}{hint}", option="name")


@contextmanager
def _installed(
    model: nn.Module, owner: object, entries: Sequence[tuple[nn.Module, Edit]]
) -> Iterator[None]:
    """Give the entries to their modules, and take them away at the end."""
    if any(hasattr(p, "full_tensor") or hasattr(p, "_is_flat_param") for p in model.parameters()):
        raise InputError("must not be sharded (FSDP)", option="the model")
    changes = any(entry.changes for _, entry in entries)
    by_module: dict[Any, list[Edit]] = {}
    for module in model.modules():
        if isinstance(module, Stack) and entries:  # which sets the columns and checks the cache
            by_module[module] = [Edit(owner, "", "", None, lambda x, _: x, changes=changes)]
    for module, entry in entries:
        by_module.setdefault(module, []).append(entry)
    for module, added in by_module.items():
        before = module.edits
        module.edits = Edits([*(before.entries if before else ()), *added])
        if module.edits.has_weights and not (before and before.has_weights):
            edit_weights(module)
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled blocks would ignore the edits
            yield
    finally:
        for module in by_module:
            current = module.edits
            rest = Edits([entry for entry in current.entries if entry.owner is not owner])
            if current.has_weights and not rest.has_weights:
                restore_weights(module)
            if rest.entries:
                module.edits = rest
            else:
                del module.edits
        call_columns.set(Columns())


def _plain(function: Callable[[Tensor], Tensor], name: str) -> Callable[[Tensor, Place], Tensor]:
    """Return the operation of a user's function, which must not change its argument."""

    def operation(x: Tensor, place: Place) -> Tensor:
        if x.is_inference():
            return function(x.clone())  # inference mode does not count changes
        version = x._version
        y = function(x)
        if x._version != version:
            raise InputError("must not change its argument in place", option=f"the edit of {name}")
        return y

    return operation


def _like(value: Any, x: Tensor, place: Place, exact: bool = False) -> Tensor:
    """Convert a value to the type and device of x; with `exact`, it must have the shape of x."""
    value = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    try:
        fits = torch.broadcast_shapes(value.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits or (exact and value.shape != x.shape):
        message = f"must have the shape {tuple(x.shape)}, got {tuple(value.shape)}"
        raise InputError(message, option=f"the value for {place.name}")
    return value


def _at(new: Tensor, x: Tensor, positions: Sequence[int] | None, place: Place) -> Tensor:
    """Return the new values at the positions, and x at all others."""
    if positions is None:
        return new
    place.check_columns()
    chosen = _columns_in(positions, x.shape[place.axis], place.first, x)
    return torch.where(chosen if place.axis == -1 else chosen[:, None], new, x)


def _columns_in(wanted: Sequence[int], length: int, first: int, x: Tensor) -> Tensor:
    """Return a mask (length,) of the columns from `first` on that are wanted."""
    columns = torch.arange(first, first + length, device=x.device)
    return torch.isin(columns, torch.as_tensor(wanted, dtype=torch.long, device=x.device))


def _pairs(x: Tensor, keys: Sequence[int], queries: Sequence[int] | None, place: Place) -> Tensor:
    """Return a mask (Tq or 1, Tk) of the pairs of the given queries and keys."""
    place.check_columns()
    hidden = _columns_in(keys, x.shape[-1], place.first_key, x)[None]
    if queries is None:
        return hidden
    return hidden & _columns_in(queries, x.shape[-2], place.first, x)[:, None]
