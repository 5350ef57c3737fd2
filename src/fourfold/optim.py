"""Optimizers, with parameter groups for weight decay and layer-wise learning-rate decay."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from fourfold.core.validation import check_range, check_types
from fourfold.errors import InputError


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and its hyper-parameters.

    Args:
        name: adam, adamw or sgd.
        lr: Peak learning rate; for the noam schedule a factor on its formula (1 in the paper).
        betas: Decay rates of the two moments (adam, adamw).
        eps: Added to the root of the second moment (adam, adamw).
        weight_decay: Decoupled and multiplied by the learning rate (adamw), or L2 (adam, sgd).
        weight_decay_params: Parameters with weight decay: matrices (all of two or more dimensions;
            GPT-2, BERT), linear (weights of linear and patch layers only: ViT, DeiT) or all.
        momentum: Momentum of sgd.
        bias_correction: Correct the bias of the moments towards their initial 0 (Kingma and Ba
            2014, section 3). BERT's code applies no correction, so the first steps are larger.
        layer_decay: Ratio of the learning rates of a layer and the next one (ELECTRA, BEiT).

    Raises:
        InputError: A value is outside its range, or `bias_correction` is false for another
            optimizer than adamw.
    """

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    weight_decay_params: Literal["matrices", "linear", "all"] = "matrices"
    momentum: float = 0.9
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
        check_range("optimizer.layer_decay", self.layer_decay, above=0.0)
        if not self.bias_correction and self.name != "adamw":
            raise InputError(
                f"must be true for {self.name}: only adamw supports false",
                option="optimizer.bias_correction",
            )


class UncorrectedAdamW(torch.optim.AdamW):
    """AdamW without bias correction, as in BERT's code (google-research/bert, optimization.py).

    At step t torch divides the first moment by c1 = 1 - b1^t and the root of the second moment by
    c2 = sqrt(1 - b2^t). A learning rate of lr c1 / c2 and an epsilon of eps / c2 cancel both
    divisions exactly. A parameter that was frozen has a smaller t than the rest of the group.
    """

    # Steps of each parameter, because reading them from the state would wait for the device.
    _step_counts: dict[nn.Parameter, int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._step_counts = {}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._step_counts = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters once."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        self.param_groups = [part for group in groups for part in self._split_by_step(group)]
        try:
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _split_by_step(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        by_step = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                if parameter not in self._step_counts:
                    self._step_counts[parameter] = int(self.state.get(parameter, {}).get("step", 0))
                self._step_counts[parameter] += 1
                by_step[self._step_counts[parameter]].append(parameter)
        parts = []
        for t, parameters in by_step.items():
            first, second = (1.0 - beta**t for beta in group["betas"])
            factor = first / math.sqrt(second)
            cancelling = {
                "lr": group["lr"] * factor,
                "eps": group["eps"] / math.sqrt(second),
                "weight_decay": group["weight_decay"] / factor,
            }
            parts.append({**group, "params": parameters, **cancelling})
        return parts


def parameter_groups(
    model: nn.Module,
    config: OptimizerConfig,
    layer_ids: tuple[Mapping[str, int], int] | None = None,
) -> list[dict[str, object]]:
    """Group the trainable parameters of a model by weight decay and layer.

    Args:
        model: The model.
        config: Weight decay, layer decay, and the parameters with weight decay.
        layer_ids: Layer index of each parameter by name, and the layer index of the head; required
            if `config.layer_decay` is not 1.

    Returns:
        Groups for a torch optimizer, each with its weight decay and learning rate.
    """
    linear = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }

    def decays(parameter: nn.Parameter) -> bool:
        if config.weight_decay_params == "linear":
            return id(parameter) in linear
        return config.weight_decay_params == "all" or parameter.dim() >= 2

    has_layer_decay = config.layer_decay != 1.0
    assert layer_ids is not None or not has_layer_decay, "layer decay requires layer_ids"
    layer_id, head_id = layer_ids or ({}, 0)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            below_head = head_id - layer_id[name] if has_layer_decay else 0
            groups[below_head, not decays(parameter)].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if no_decay else config.weight_decay,
            "lr": config.lr * config.layer_decay**below_head,
        }
        for (below_head, no_decay), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    layer_ids: tuple[Mapping[str, int], int] | None = None,
    *,
    fused: bool = True,
) -> Optimizer:
    """Build an optimizer over the trainable parameters of a model.

    Args:
        model: The model.
        config: Optimizer and its hyper-parameters.
        layer_ids: See `parameter_groups`.
        fused: Use torch's fused implementation, which is three times as fast on a CPU.

    Raises:
        InputError: No parameter is trainable.

    Example:
        >>> optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name="sgd", lr=0.1))
        >>> [group["weight_decay"] for group in optimizer.param_groups]  # matrix, bias
        [0.01, 0.0]
    """
    groups = parameter_groups(model, config, layer_ids)
    if not groups:
        raise InputError("has no trainable parameter: all weights are frozen", option="model")
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    # Loshchilov and Hutter 2017; Kingma and Ba 2014
    adamw = torch.optim.AdamW if config.bias_correction else UncorrectedAdamW
    adam = adamw if config.name == "adamw" else torch.optim.Adam
    return adam(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
