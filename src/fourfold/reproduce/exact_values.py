"""What needs no training: each row of `EXACT` turns a row's setup into a number or a formula.

A setup is what the tables' YAML says of a row: `family` and `config` of a model, and the few words
that the function here names. Matrix products are counted as two FLOPs a multiply-add.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fourfold.core.config import TransformerConfig
from fourfold.core.errors import InputError
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)
from fourfold.models.cost import BACKWARD, Parts, forward_flops
from fourfold.models.cost import parameters as count
from fourfold.papers.conventions import greatest_rate
from fourfold.papers.layers import LAYERS, cost_formula, path_formula, sequence_formula
from fourfold.papers.masks import distinct_masks, shares
from fourfold.papers.tables import Row, Table
from fourfold.schedules import ScheduleConfig

Setup = Mapping[str, Any]

FAMILIES: dict[str, tuple[Callable[..., torch.nn.Module], Callable[..., TransformerConfig]]] = {
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig),
    "masked_lm": (MaskedLM, MaskedLMConfig),
    "causal_lm": (CausalLM, CausalLMConfig),
    "vit": (ViT, ViTConfig),
}


def _config(setup: Setup) -> TransformerConfig:
    return FAMILIES[setup["family"]][1](**setup["config"])


def parameters(setup: Setup) -> int:
    """Of the model, built on the meta device; `leave_out` names parts not to count."""
    with torch.device("meta"):
        parts: Parts = count(FAMILIES[setup["family"]][0](_config(setup)))
    return parts.total - sum(getattr(parts, part) for part in setup.get("leave_out", ()))


def forward(setup: Setup) -> int:
    """FLOPs of a forward pass of one sequence of `length` tokens, sentence pair or image."""
    return forward_flops(_config(setup), setup.get("length")).total


def device_flops(setup: Setup) -> float:
    """Hours x devices x what each is taken to sustain: how Vaswani's Table 2 counts."""
    return float(setup["hours"] * 3600 * setup["devices"] * setup["tflops"] * 1e12)


def training_flops(setup: Setup) -> float:
    """Of the model's matrix products over `steps` of `batch` rows, or over `samples`."""
    samples = setup.get("samples") or setup["steps"] * setup["batch"]
    return BACKWARD * float(forward(setup)) * samples


def six_n_d(setup: Setup) -> float:
    """6 x parameters x tokens, the rule of thumb; `rounded` parameters, where there are such."""
    return 6.0 * setup.get("rounded", parameters(setup)) * setup["tokens"]


def sequences(setup: Setup) -> float:
    """Rows that a pre-training reads: steps x batch."""
    return float(setup["steps"] * setup["batch"])


def peak_rate(setup: Setup) -> float:
    """The greatest learning rate that the schedule reaches in `steps` steps."""
    schedule = ScheduleConfig(**setup["schedule"])
    return greatest_rate(schedule, float(setup["lr"]), setup["steps"], setup["d_model"])


EXACT: dict[str, Callable[[Setup], float | str]] = {
    "parameters": parameters,
    "forward": forward,
    "device_flops": device_flops,
    "training_flops": training_flops,
    "six_n_d": six_n_d,
    "sequences": sequences,
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
    """One cell, in units (parameters, not millions of them).

    Args:
        table: The table.
        row: One of its rows.
        column: One of its exact columns.
        setup: In place of the row's own.

    Raises:
        InputError: The table names a function that is not here, or a setup that cannot be.
    """
    name = table.columns[column].exact
    if name not in EXACT:
        raise InputError(f"{table.name}, column {column}: nothing computes {name}")
    try:
        return EXACT[name](row.setup if setup is None else setup)  # type: ignore[arg-type]
    except KeyError as error:
        raise InputError(
            f"{table.name}, row {row.name}: {name} needs {error.args[0]} in the setup"
        ) from error
