"""Low-rank adaptation: a frozen matrix with a small learned change (Hu et al. 2021).

Shapes: D in and E out width of a matrix, R rank.
"""

import re
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.config import check_positive
from fourfold.core.errors import InputError
from fourfold.kernels.dropout import Dropout


class LoRALinear(nn.Module):
    """x W^T + b + (alpha / R) (x A^T) B^T, of which only A (R, D) and B (E, R) learn (section 4.1).

    B begins at 0, so that nothing changes at first.

    Args:
        base: The matrix that is adapted.
        rank: R.
        alpha: The change is multiplied by alpha / R.
        dropout: On the input of A.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        check_positive("lora rank", rank)
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., E)."""
        return self.base(x) + self.scale * F.linear(F.linear(self.dropout(x), self.a), self.b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The matrix with its change added, as if it had always been so."""
        self.base.weight += self.scale * self.b @ self.a
        return self.base


def add_lora(
    model: nn.Module, rank: int, *, alpha: float, dropout: float, targets: Sequence[str]
) -> None:
    """Adapt every matrix of `model` whose name ends in one of `targets`, and freeze it.

    Raises:
        InputError: No matrix is called so.
    """
    chosen = [name for name, module in model.named_modules()
              if isinstance(module, nn.Linear) and re.search(_ends_in(targets), name)]  # fmt: skip
    if not chosen:
        raise InputError(f"no matrix of the model is called {' or '.join(targets)}")
    for name in chosen:
        owner, leaf = _owner(model, name)
        setattr(owner, leaf, LoRALinear(getattr(owner, leaf), rank, alpha, dropout))


def merge_lora(model: nn.Module) -> nn.Module:
    """The model without low-rank parts, their changes added to the matrices; in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            owner, leaf = _owner(model, name)
            setattr(owner, leaf, module.merged())
    return model


def is_lora(name: str) -> bool:
    """Whether a parameter of this name is A or B."""
    return name.endswith((".a", ".b"))


def _ends_in(targets: Iterable[str]) -> str:
    return rf"(^|\.)({'|'.join(map(re.escape, targets))})$"


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf
