"""Optimizers and their parameter groups, such as the group without weight decay."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fourfold.core.block import Block
from fourfold.core.validation import check_range, check_types
from fourfold.errors import InputError

# Step of Adam at which the correction of the bias, 1 - beta^step, is exactly 1; the largest step
# that torch can count to in fp32.
LAST_STEP = 2.0**24
# Optimizers whose weight decay is decoupled from the gradient. For the others it is an L2 penalty.
DECOUPLED = ("adamw", "muon")


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and its hyper-parameters.

    Args:
        name: adam, adamw, adadelta (Zeiler 2012), sgd or muon, which updates the matrices of
            transformer blocks by Muon (Jordan et al. 2024), and all other parameters by AdamW.
        lr: Peak learning rate. With the noam schedule, it is a factor (1 in the paper).
        betas: Decay rates of the first and second moments (adam, adamw, AdamW's part of muon).
        eps: Number that is added to the square root of the second moment, or for adadelta to the
            second moments before their square roots. Not used by sgd.
        weight_decay: Strength of the weight decay. For adamw and muon, it is decoupled from the
            gradient, and None means 0.01; for the others, it is an L2 penalty, and None means 0.
        weight_decay_params: matrices (all parameters of two or more dimensions; GPT-2, BERT),
            linear (weights of linear layers and convolutions; ViT, DeiT) or all.
        momentum: Momentum of sgd and Muon (0.95 in Jordan et al. 2024).
        muon_lr_scale: Factor on the learning rate of the matrices that Muon updates. Their updates
            are scaled so that 1 suits a learning rate chosen for adamw (Liu et al. 2025).
        rho: Decay rate of the second moments of adadelta.
        bias_correction: Correct the bias of the moments, which start at 0. False reproduces the
            larger first steps of BERT's code, and is for adamw only.
        layer_decay: Learning rate of a layer divided by that of the next layer towards the head
            (ELECTRA, BEiT).

    Example:
        >>> OptimizerConfig(lr=0.0)
        Traceback (most recent call last):
            ...
        fourfold.errors.InputError: optimizer.lr must be above 0, got 0.0
    """

    name: Literal["adam", "adamw", "adadelta", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float | None = None
    weight_decay_params: Literal["matrices", "linear", "all"] = "matrices"
    momentum: float = 0.9
    muon_lr_scale: float = 1.0
    rho: float = 0.95
    bias_correction: bool = True
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        check_types(self, prefix="optimizer.")
        default = 0.01 if self.name in DECOUPLED else 0.0
        decay = default if self.weight_decay is None else self.weight_decay
        object.__setattr__(self, "weight_decay", decay)
        for name in ("lr", "eps", "muon_lr_scale", "layer_decay"):
            check_range(f"optimizer.{name}", getattr(self, name), above=0.0)
        for i, beta in enumerate(self.betas):
            check_range(f"optimizer.betas[{i}]", beta, minimum=0.0, below=1.0)
        check_range("optimizer.weight_decay", decay, minimum=0.0)
        check_range("optimizer.momentum", self.momentum, minimum=0.0, below=1.0)
        check_range("optimizer.rho", self.rho, minimum=0.0, below=1.0)
        if not self.bias_correction and self.name != "adamw":
            message = f"must be true for {self.name}: only adamw supports false"
            raise InputError(message, option="optimizer.bias_correction")


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Return the trainable weights of linear layers in transformer blocks, which Muon updates."""
    blocks = (module for module in model.modules() if isinstance(module, Block))
    linear = (m for block in blocks for m in block.modules() if isinstance(m, nn.Linear))
    return [layer.weight for layer in linear if layer.weight.requires_grad]


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, lr_scales: Mapping[str, float] | None = None
) -> list[dict[str, object]]:
    """Group the trainable parameters of a model by learning rate and weight decay.

    `lr_scales` are factors on the learning rate by the name of a parameter; None means 1. The group
    with the highest learning rate comes first. The groups of muon have the additional key muon,
    which is True for the parameters that Muon updates.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> groups = parameter_groups(layer, OptimizerConfig(), {"weight": 0.5, "bias": 1.0})
        >>> [(group["lr"], group["weight_decay"]) for group in groups]
        [(0.001, 0.0), (0.0005, 0.01)]
    """
    linear = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }

    def decays(parameter: nn.Parameter) -> bool:
        if config.weight_decay_params == "linear":
            return id(parameter) in linear
        return config.weight_decay_params == "all" or parameter.dim() >= 2

    matrices = {id(p) for p in hidden_matrices(model)} if config.name == "muon" else set()
    groups: dict[tuple[float, bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = lr_scales[name] if lr_scales else 1.0
            uses_muon = id(parameter) in matrices
            scale *= config.muon_lr_scale if uses_muon else 1.0
            groups[scale, decays(parameter), uses_muon].append(parameter)
    return [
        {
            "params": groups[scale, has_decay, uses_muon],
            "weight_decay": config.weight_decay if has_decay else 0.0,
            "lr": config.lr * scale,
            **({"muon": uses_muon} if matrices else {}),
        }
        for scale, has_decay, uses_muon in sorted(groups, reverse=True)
    ]


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    lr_scales: Mapping[str, float] | None = None,
    *,
    fused: bool = True,
) -> Optimizer:
    """Build an optimizer over the trainable parameters of a model, see `parameter_groups`.

    `fused` selects torch's fused implementation, which is three times as fast on a CPU; adadelta
    has none. InputError if for muon no matrix of a block is trainable.

    Example:
        >>> optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name="sgd", lr=0.1))
        >>> [group["weight_decay"] for group in optimizer.param_groups]  # matrix, bias
        [0.0, 0.0]
    """
    groups = parameter_groups(model, config, lr_scales)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    if config.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=config.lr, rho=config.rho, eps=config.eps)
    if config.name == "muon":
        if "muon" not in groups[0]:
            message = "must not be muon: no matrix of a transformer block is trainable"
            raise InputError(message, option="optimizer.name")
        return MuonAdamW(groups, config, fused=fused)
    # Loshchilov and Hutter 2017; Kingma and Ba 2014
    adam = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    optimizer = adam(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
    if not config.bias_correction:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            step = torch.tensor(LAST_STEP, device=parameter.device if fused else "cpu")
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": step, **moments}
    return optimizer


class MuonAdamW(Optimizer):
    """Muon for some parameter groups, and AdamW for the others.

    Muon (Jordan et al. 2024) replaces the momentum of a matrix by the nearest semi-orthogonal
    matrix, which it approximates with five Newton-Schulz iterations in bf16. The update of a matrix
    with A rows and B columns is multiplied by 0.2 sqrt(max(A, B)) (Liu et al. 2025). torch's two
    optimizers make the steps. They share the parameter groups and the states of this optimizer.
    """

    def __init__(
        self, groups: list[dict[str, Any]], config: OptimizerConfig, *, fused: bool
    ) -> None:
        matrices = [group for group in groups if group["muon"]]
        others = [group for group in groups if not group["muon"]]
        muon = torch.optim.Muon(matrices, momentum=config.momentum, adjust_lr_fn="match_rms_adamw")
        self.parts: list[tuple[bool, Optimizer]] = [(True, muon)]
        if others:
            adamw = torch.optim.AdamW(others, betas=config.betas, eps=config.eps, fused=fused)
            self.parts.append((False, adamw))
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of Muon and one of AdamW."""
        losses = []
        for uses_muon, part in self.parts:
            # Shared before each step, because `load_state_dict` replaces states and groups.
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group["muon"] == uses_muon]
            losses.append(part.step(closure))
            closure = None  # the first part has called it
        return losses[0]
