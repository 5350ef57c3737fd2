"""Optimizers and their parameter groups, such as the group without weight decay."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from fourfold.core.validation import check_range, check_types
from fourfold.errors import InputError

# Step of Adam at which the correction of the bias, 1 - beta^step, is exactly 1; the largest step
# that torch can count to in fp32.
LAST_STEP = 2.0**24


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and its hyper-parameters.

    Args:
        name: adam, adamw, adadelta (Zeiler 2012; Bahdanau et al. 2015 with lr 1, eps 1e-6) or sgd.
        lr: Peak learning rate. With the noam schedule, `lr` is a factor on that schedule's formula
            (1 in the paper).
        betas: Decay rates of the first and second moments (adam, adamw).
        eps: Number that is added to the square root of the second moment (adam, adamw), or to the
            second moments before their square roots (adadelta). Not used by sgd.
        weight_decay: Strength of the weight decay. For adamw, it is decoupled from the gradient and
            multiplied by the learning rate. For adam, adadelta and sgd, it is an L2 penalty.
        weight_decay_params: Parameters with weight decay. "matrices" means all parameters of two or
            more dimensions (GPT-2, BERT). "linear" means the weights of linear layers and
            convolutions only (ViT, DeiT). "all" means all parameters.
        momentum: Momentum of sgd; not used by the other optimizers.
        rho: Decay rate of the second moments of adadelta; not used by the other optimizers.
        bias_correction: Correct the bias of the first and second moments, which start at 0 (Kingma
            and Ba 2014, section 3). False reproduces BERT's code (google-research/bert,
            optimization.py), whose first steps are larger.
        layer_decay: Learning rate of a layer divided by the learning rate of the next layer towards
            the head (ELECTRA, BEiT). 1 gives all layers the same learning rate.

    Raises:
        InputError: A value is outside its range, or `bias_correction` is false for another
            optimizer than adamw.

    Example:
        >>> config = OptimizerConfig(lr=5e-4, betas=(0.9, 0.98), weight_decay=0.1)
        >>> type(make_optimizer(nn.Linear(2, 2), config)).__name__
        'AdamW'
        >>> OptimizerConfig(lr=0.0)
        Traceback (most recent call last):
            ...
        fourfold.errors.InputError: optimizer.lr must be above 0, got 0.0
    """

    name: Literal["adam", "adamw", "adadelta", "sgd"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    weight_decay_params: Literal["matrices", "linear", "all"] = "matrices"
    momentum: float = 0.9
    rho: float = 0.95
    bias_correction: bool = True
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        check_types(self, prefix="optimizer.")
        check_range("optimizer.lr", self.lr, above=0.0)
        check_range("optimizer.eps", self.eps, above=0.0)
        for i, beta in enumerate(self.betas):
            check_range(f"optimizer.betas[{i}]", beta, minimum=0.0, below=1.0)
        check_range("optimizer.weight_decay", self.weight_decay, minimum=0.0)
        check_range("optimizer.momentum", self.momentum, minimum=0.0, below=1.0)
        check_range("optimizer.rho", self.rho, minimum=0.0, below=1.0)
        check_range("optimizer.layer_decay", self.layer_decay, above=0.0)
        if not self.bias_correction and self.name != "adamw":
            message = f"must be true for {self.name}: only adamw supports false"
            raise InputError(message, option="optimizer.bias_correction")


def parameter_groups(
    model: nn.Module,
    config: OptimizerConfig,
    lr_scales: Mapping[str, float] | None = None,
) -> list[dict[str, object]]:
    """Group the trainable parameters of a model by learning rate and weight decay.

    Source: Radford et al. 2018, section 4.1, whose decay exempts biases and the gains of norms.

    Args:
        model: The model.
        config: Options of the optimizer. The fields `lr`, `weight_decay` and `weight_decay_params`
            are used.
        lr_scales: Factor on the learning rate of each parameter, by name, such as those of
            `fourfold.models.finetuning.layer_groups.layer_lr_scales`. None means 1.

    Returns:
        Parameter groups for a torch optimizer, a list of dictionaries with the keys params,
        weight_decay and lr. The group with the highest learning rate comes first.

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

    groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = lr_scales[name] if lr_scales else 1.0
            groups[scale, decays(parameter)].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if has_decay else 0.0,
            "lr": config.lr * scale,
        }
        for (scale, has_decay), parameters in sorted(
            groups.items(), key=lambda item: item[0], reverse=True
        )
    ]


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    lr_scales: Mapping[str, float] | None = None,
    *,
    fused: bool = True,
) -> Optimizer:
    """Build an optimizer over the trainable parameters of a model.

    Source: Kingma and Ba 2014 (Adam); Loshchilov and Hutter 2017 (AdamW); Zeiler 2012 (Adadelta).

    Args:
        model: The model.
        config: Optimizer and its hyper-parameters.
        lr_scales: Factor on the learning rate of each parameter, by name. None means 1.
        fused: Use torch's fused implementation, which is three times as fast on a CPU. Ignored for
            adadelta, which has no fused implementation.

    Raises:
        InputError: No parameter is trainable.

    Example:
        >>> optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name="sgd", lr=0.1))
        >>> [group["weight_decay"] for group in optimizer.param_groups]  # matrix, bias
        [0.01, 0.0]
    """
    groups = parameter_groups(model, config, lr_scales)
    if not groups:
        raise InputError("has no trainable parameter: all weights are frozen", option="model")
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    if config.name == "adadelta":
        return torch.optim.Adadelta(groups, lr=config.lr, rho=config.rho, eps=config.eps)
    # Loshchilov and Hutter 2017; Kingma and Ba 2014
    adam = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    optimizer = adam(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
    if not config.bias_correction:
        _disable_bias_correction(optimizer, fused)
    return optimizer


def _disable_bias_correction(optimizer: torch.optim.Adam, fused: bool) -> None:
    """Disable Adam's bias correction by starting the step count of every parameter at 2^24.

    The correction factors 1 - beta^step are 1 from this step on.

    Args:
        optimizer: New optimizer, whose state is set in place.
        fused: True if the optimizer is fused. The step counts of a fused optimizer are on the
            devices of the parameters, otherwise on the CPU.
    """
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        step = torch.tensor(LAST_STEP, device=parameter.device if fused else "cpu")
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": step, **moments}
