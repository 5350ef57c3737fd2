"""Computation of table cells without training: parameters, FLOPs, formulas, schedules, masks.

Each function of `EXACT` maps the `setup` of a table row (line) to a number or a formula, the cell
of one column. A setup contains the `family` and `config` of a model and further inputs of the
function. A multiply-add counts as two FLOPs.
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
    model_class, config_class = FAMILIES[setup["family"]]
    with torch.device("meta"):
        return model_class(config_class(**setup["config"]))


def parameters(setup: Setup) -> int:
    """Count the parameters of a model, except for the parts named in `leave_out`."""
    parts: CostBreakdown = count(_model(setup))
    return parts.total - sum(getattr(parts, part) for part in setup.get("leave_out", ()))


def forward(setup: Setup) -> int:
    """Count the FLOPs of a forward pass of one sequence of `length` tokens or one image."""
    return forward_flops(_model(setup), setup.get("length")).total


def device_flops(setup: Setup) -> float:
    """Compute hours x devices x sustained FLOP/s, the estimate of Vaswani et al. 2017, Table 2."""
    return float(setup["hours"] * 3600 * setup["devices"] * setup["tflops"] * 1e12)


def training_flops(setup: Setup) -> float:
    """Compute the training FLOPs of `steps` batches, or of `samples` samples."""
    samples = setup.get("samples") or setup["steps"] * setup["batch"]
    return TRAINING_TO_FORWARD * float(forward(setup)) * samples


def six_n_d(setup: Setup) -> float:
    """Estimate the training FLOPs as 6 x (rounded) parameters x tokens."""
    return 6.0 * setup.get("rounded", parameters(setup)) * setup["tokens"]


def peak_rate(setup: Setup) -> float:
    """Compute the maximum learning rate of a schedule over `steps` optimizer steps."""
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
    """Compute one cell in base units (parameters, not millions of parameters).

    Args:
        table: Table.
        row: Row of the table.
        column: Exact column of the table.
        setup: Setup to use instead of the setup of the row.
    """
    function = EXACT[str(table.columns[column].exact)]
    return function(setup or row.setup or {})
