"""LoRA: low-rank updates of frozen linear layers, and the merging of updates (Hu et al. 2021).

Shapes: D input and E output width of a layer, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.kernels.dropout import Dropout


class LoRALinear(nn.Module):
    """Linear layer with a low-rank update: x W^T + b + (alpha / R) (x A^T) B^T (section 4.1).

    Only A (R, D) and B (E, R) are trained. B is initialized to 0, which leaves the output of the
    layer unchanged at first. `dropout` applies to the input of A.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer with its update to x (..., D), and return the result (..., E)."""
        return self.base(x) + self.scale * F.linear(F.linear(self.dropout(x), self.a), self.b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Add the update to the weight of the linear layer in place, and return that layer."""
        self.base.weight += self.scale * self.b @ self.a
        return self.base


def add_lora(model: nn.Module, tuning: TuningConfig) -> None:
    """Replace the linear layers in `tuning.lora_targets` by `LoRALinear`, in place.

    Raises:
        InputError: No linear layer has a name with such a last component.
    """
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    chosen = {n: m for n, m in linear.items() if n.rpartition(".")[2] in tuning.lora_targets}
    if not chosen:
        raise InputError(
            f"must name linear layers of the model, got {', '.join(tuning.lora_targets)}",
            option="lora_targets",
        )
    for name, module in chosen.items():
        update = LoRALinear(module, tuning.lora_rank, tuning.lora_alpha, tuning.lora_dropout)
        model.set_submodule(name, update)


def merge_lora(model: nn.Module) -> nn.Module:
    """Replace each `LoRALinear` by an updated linear layer, in place, and return the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            model.set_submodule(name, module.merged())
    return model


def is_lora(model: nn.Module, name: str) -> bool:
    """Return True if `name` is the name of the parameter A or B of a `LoRALinear` of a model."""
    return isinstance(model.get_submodule(name.rpartition(".")[0]), LoRALinear)
