"""What of a model learns when it begins with the weights of another."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fourfold.core.config import check_types, check_word
from fourfold.core.errors import InputError
from fourfold.models.depths import depths
from fourfold.models.lora import add_lora, is_lora
from fourfold.models.transfer import RESIZES
from fourfold.optim import check_range


@dataclass(frozen=True)
class TuningConfig:
    """How a model is fine-tuned.

    Args:
        resize: How a grid of positions becomes one of another resolution: bicubic_antialias
            (timm), bicubic (DeiT), bilinear, or zoom (Google).
        freeze: How many of the lowest layers stay as they are, with what enters them; "all" leaves
            the head alone (linear probe).
        unfreeze_every: Epochs after which the next layer thaws, from the top; at first the head
            alone learns (Howard and Ruder 2018, 3.3).
        lora_rank: Learn low-rank changes of the matrices in place of the layers (Hu et al. 2021);
            0 does not.
        lora_alpha: Their strength; they are multiplied by alpha / rank.
        lora_dropout: On what enters them.
        lora_targets: Which matrices: names of linear layers, of attention q, k, v and out, of the
            feed-forward layer up and down.
    """

    resize: str = "bicubic_antialias"
    freeze: int | Literal["all"] = 0
    unfreeze_every: int | None = None
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ("q", "v")

    def __post_init__(self) -> None:
        check_types(self)
        check_word("resize", self.resize, tuple(RESIZES))
        if isinstance(self.freeze, int):
            check_range("freeze", self.freeze, least=0)
        if self.unfreeze_every is not None:
            check_range("unfreeze_every", self.unfreeze_every, least=1)
        check_range("lora_rank", self.lora_rank, least=0)
        check_range("lora_alpha", self.lora_alpha, above=0.0)
        check_range("lora_dropout", self.lora_dropout, least=0.0, below=1.0)
        if self.freeze and self.lora_rank:
            raise InputError("lora_rank freezes all layers itself: leave out freeze")


def adapt(model: nn.Module, tuning: TuningConfig) -> None:
    """Freeze what does not learn, and add what learns in its place.

    Raises:
        InputError: The model has not so many layers, or no such matrices.
    """
    if tuning.freeze:
        depth, top = depths(model)
        n_layers = top - 1
        if tuning.freeze != "all" and tuning.freeze > n_layers:
            raise InputError(f"freeze is {tuning.freeze}, but the model has {n_layers} layers")
        border = n_layers if tuning.freeze == "all" else int(tuning.freeze)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(depth[name] > border)
        model.train(model.training)  # running statistics are frozen with their layer
    if tuning.lora_rank:
        add_lora(
            model, tuning.lora_rank, alpha=tuning.lora_alpha, dropout=tuning.lora_dropout,
            targets=tuning.lora_targets,
        )  # fmt: skip
        depth, top = depths(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_lora(name) or depth[name] == top)


def still_frozen(model: nn.Module, tuning: TuningConfig, epoch: int) -> list[nn.Parameter]:
    """Parameters that gradual unfreezing does not let learn yet, a function of the epoch alone."""
    if tuning.unfreeze_every is None:
        return []
    depth, top = depths(model)
    border = top - 1 - epoch // tuning.unfreeze_every
    return [parameter for name, parameter in model.named_parameters() if depth[name] <= border]


def hold_statistics(model: nn.Module, tuning: TuningConfig, epoch: int) -> None:
    """What gradual unfreezing does not let learn yet keeps its running statistics, too."""
    if tuning.unfreeze_every is None:
        return
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    frozen = set(map(id, still_frozen(model, tuning, epoch))) if norms else set()
    for norm in norms:
        norm.train(norm.weight.requires_grad and id(norm.weight) not in frozen)
