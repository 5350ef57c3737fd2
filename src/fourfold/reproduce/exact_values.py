"""Computation of table cells without training: parameters, FLOPs, formulas, schedules, masks.

Each function of `EXACT` computes the cells of one column. The argument is the setup of a row (line)
of the table: a mapping with the inputs of the function, such as `family` and `config` of a model,
or the number of training `steps`. The result is a number, or a formula as text. A multiply-add
counts as two FLOPs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fourfold import models
from fourfold.core.config import TransformerConfig
from fourfold.models.analysis.flops import TRAINING_TO_FORWARD, CostBreakdown, forward_flops
from fourfold.models.analysis.flops import parameters as count
from fourfold.reproduce.layer_complexity import LAYERS, cost_formula, path_formula, sequence_formula
from fourfold.reproduce.mask_statistics import distinct_masks, shares
from fourfold.reproduce.recipe_cards.conventions import max_learning_rate
from fourfold.reproduce.tables import Row, Table
from fourfold.schedules import ScheduleConfig

Setup = Mapping[str, Any]

FAMILIES: dict[str, tuple[Callable[..., models.Model], Callable[..., TransformerConfig]]] = {
    "encoder_decoder": (models.EncoderDecoder, models.EncoderDecoderConfig),
    "masked_lm": (models.MaskedLM, models.MaskedLMConfig),
    "causal_lm": (models.CausalLM, models.CausalLMConfig),
    "vit": (models.ViT, models.ViTConfig),
}


def _model(setup: Setup) -> models.Model:
    """Build the model of a setup on the meta device, without values of the weights."""
    model_class, config_class = FAMILIES[setup["family"]]
    with torch.device("meta"):
        return model_class(config_class(**setup["config"]))


def parameters(setup: Setup) -> int:
    """Count the parameters of the setup's model, except for the parts in `setup["leave_out"]`.

    The parts are fields of `CostBreakdown`: embeddings, blocks or head.
    """
    parts: CostBreakdown = count(_model(setup))
    return parts.total - sum(getattr(parts, part) for part in setup.get("leave_out", ()))


def forward(setup: Setup) -> int:
    """Count the FLOPs of a forward pass of the setup's model.

    The input is one image or one sequence of `setup["length"]` tokens; for an encoder-decoder,
    source and target have that length.
    """
    return forward_flops(_model(setup), setup.get("length")).total


def device_flops(setup: Setup) -> float:
    """Estimate the training FLOPs as time x devices x sustained FLOP/s of one device.

    Vaswani et al. 2017, Table 2, prints this estimate. The setup contains the `hours` of training,
    the number of `devices`, and `tflops` (10^12 FLOP/s) of one device.
    """
    return float(setup["hours"] * 3600 * setup["devices"] * setup["tflops"] * 1e12)


def training_flops(setup: Setup) -> float:
    """Compute the training FLOPs of the setup's model as three times those of all forward passes.

    The setup contains the number of training `samples` (sequences or images), or the number of
    `steps` and the samples of a `batch`.
    """
    samples = setup.get("samples") or setup["steps"] * setup["batch"]
    return TRAINING_TO_FORWARD * float(forward(setup)) * samples


def six_n_d(setup: Setup) -> float:
    """Estimate the training FLOPs as 6 x parameters x tokens.

    The setup contains the number of `tokens`. The number of parameters is `setup["rounded"]`, if
    given, or else that of the setup's model.
    """
    return 6.0 * setup.get("rounded", parameters(setup)) * setup["tokens"]


def peak_rate(setup: Setup) -> float:
    """Compute the maximum learning rate of a training.

    The setup contains the `schedule` (fields of `ScheduleConfig`), the learning rate `lr` that the
    schedule multiplies, the number of optimizer `steps` and the width `d_model`.
    """
    schedule = ScheduleConfig(**setup["schedule"])
    return max_learning_rate(schedule, float(setup["lr"]), setup["steps"], setup["d_model"])


EXACT: dict[str, Callable[[Setup], float | str]] = {
    "parameters": parameters,
    "forward": forward,
    "device_flops": device_flops,
    "training_flops": training_flops,
    "six_n_d": six_n_d,
    "sequences": lambda setup: float(setup["steps"] * setup["batch"]),
    "peak_rate": peak_rate,
    "cost_formula": lambda setup: cost_formula(LAYERS[setup["layer"]]),
    "sequence_formula": lambda setup: sequence_formula(LAYERS[setup["layer"]]),
    "path_formula": lambda setup: path_formula(LAYERS[setup["layer"]]),
    "masked_share": lambda setup: shares(setup["masking"])["mask"],
    "same_share": lambda setup: shares(setup["masking"])["same"],
    "random_share": lambda setup: shares(setup["masking"])["random"],
    "distinct_masks": lambda setup: distinct_masks(setup["masking"], setup["epochs"]),
}


def compute(table: Table, row: Row, column: str, setup: Setup | None = None) -> float | str:
    """Compute one cell with the function of `EXACT` that belongs to its column.

    Args:
        table: Table.
        row: Row of the table.
        column: Name of a column whose `exact` is set.
        setup: Inputs of the function; None means `row.setup`.

    Returns:
        A number in base units (parameters, not millions of parameters), or a formula as text.
    """
    function = EXACT[str(table.columns[column].exact)]
    return function(setup or row.setup or {})
