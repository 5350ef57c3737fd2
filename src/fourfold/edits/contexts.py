"""`edit` and `record`: contexts in which tensors inside a model are changed or kept."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import Block, Stack
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
from fourfold.edits.operations import Operation, from_function
from fourfold.edits.run import Run
from fourfold.errors import InputError

PARTS = {"attn": "self", "cross_attn": "cross", "ff": "ff"}
_lock = Lock()
_open_contexts: list[Any] = []  # the first element restores the stance of the compiler


class Target(NamedTuple):
    """Tensor that can be edited: its module and slot, and its number of heads or neurons."""

    module: nn.Module
    slot: str
    size: int | None = None
    is_cross: bool = False


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
            operation = Operation(from_function(operation, pattern))
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
        # The model goes on with what is stored, which has a gradient also if parameters are frozen.
        x = (x if x.requires_grad else x.detach().requires_grad_()).clone() if grad else x
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
        path = path.replace("_orig_mod.", "")  # of a compiled model
        if isinstance(module, Stack):
            stack = re.sub(r"(^|\.)stack$", "", path)
            for i, block in enumerate(module.blocks):
                inner = getattr(block, "block", block)  # of a block with its own positions
                _add_block(found, f"{stack}.{i}" if stack else str(i), inner)
        elif isinstance(module, Attention) and ".blocks." not in f".{path}":  # pooling
            _add_attention(found, path, module)
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
            found[f"{name}.ff.neuron"] = Target(module, "neuron", module.d_ff)
        else:
            _add_attention(found, f"{name}.{part}", module, part == "cross")


def _add_attention(
    found: dict[str, Target], name: str, module: Attention, is_cross: bool = False
) -> None:
    for slot in ("q", "k", "v", "weights", "head"):
        size = module.n_kv_heads if slot in ("k", "v") else module.n_heads
        found[f"{name}.{slot}"] = Target(module, slot, size, is_cross)


def _matches(model: nn.Module, pattern: str) -> list[tuple[str, Target, int | None]]:
    """Return name, target and index of all tensors that a pattern means."""
    targets = edit_targets(model)
    found: list[tuple[str, Target, int | None]] = []
    stem, _, last = pattern.rpartition(".")
    wanted = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    for name, target in targets.items():
        # "*.head" is the tensor of all heads and "*.head.*" each head; "*" alone is each head, too.
        if target.size is None or name.rpartition(".")[2] == last:
            if wanted.fullmatch(name):
                found.append((name, target, None))
        elif name == stem or "*" in pattern:
            indexed = ((f"{name}.{i}", i) for i in range(target.size))
            found.extend((full, target, i) for full, i in indexed if wanted.fullmatch(full))
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
def _eager(owner: object) -> Iterator[None]:
    """Run compiled blocks, which would ignore the edits, without their graphs."""
    with _lock:  # contexts may end in any order
        first = [] if _open_contexts else [torch.compiler.set_stance("force_eager")]
        _open_contexts.extend([*first, owner])
    try:
        yield
    finally:
        with _lock:
            _open_contexts.remove(owner)
            if len(_open_contexts) == 1:
                _open_contexts.pop().__exit__(None, None, None)


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
        # A stack sets the columns and checks the cache, and a block keeps its activations.
        if isinstance(module, Stack | Block) and entries:
            by_module[module] = [Edit(owner, "", "", None, lambda x, _: x, changes=changes)]
    for module, entry in entries:
        by_module.setdefault(module, []).append(entry)
    for module, added in by_module.items():
        before = module.edits
        module.edits = Edits([*(before.entries if before else ()), *added])
        if module.edits.has_weights and not (before and before.has_weights):
            edit_weights(module)
    try:
        with _eager(owner):
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
