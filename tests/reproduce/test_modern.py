"""fourfold/modern: the models of a task have equal size, and all of its options parse."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

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
from fourfold.optim import OptimizerConfig
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.runs.plan import plan_runs
from fourfold.reproduce.runs.run import Machine, Run

FAMILIES: dict[str, tuple[type, type, dict[str, int]]] = {
    "translation": (EncoderDecoder, EncoderDecoderConfig, {"vocab_size": 3000}),
    "masked": (MaskedLM, MaskedLMConfig, {"vocab_size": 1000}),
    "causal": (CausalLM, CausalLMConfig, {"vocab_size": 69}),
    "images": (ViT, ViTConfig, {"n_classes": 10}),
}


def planned() -> list[Run]:
    (table,) = find_tables(["fourfold/modern"])
    return plan_runs(table, "laptop", table.rows_of("laptop"), 1, Path("runs"), Machine())


def section(run: Run, name: str) -> dict[str, Any]:
    """Return a section of the arguments of a run's task: its recipe, changed by its options."""
    task = yaml.safe_load(Path(run.recipe.config).read_text())["model"]["init_args"]
    values: dict[str, Any] = dict(task[name])
    prefix = f"--model.init_args.{name}."
    for option, value in zip(run.fit[::2], run.fit[1::2], strict=True):
        if option.startswith(prefix):
            values[option.removeprefix(prefix)] = yaml.safe_load(value)
    return values


@pytest.mark.parametrize("part", FAMILIES)
def test_models_of_a_task_have_equal_size(part: str) -> None:
    model_class, config_class, sizes = FAMILIES[part]
    counts = {}
    for run in planned():
        if run.part == part:
            config = config_class(**(section(run, "config") | sizes))
            with torch.device("meta"):
                counts[run.row] = sum(p.numel() for p in model_class(config).parameters())
    assert len(counts) == (14 if part == "images" else 13)
    for row, count in counts.items():
        assert count == pytest.approx(counts["base"], rel=0.005), row


def test_rows_differ_from_the_base_in_the_options_of_their_titles() -> None:
    changed: dict[str, set[str]] = {}
    runs = planned()
    base = {run.part: run for run in runs if run.row == "base"}
    for run in runs:
        for name in ("config", "optimizer"):
            was, values = section(base[run.part], name), section(run, name)
            keys = {key for key, value in values.items() if was.get(key) != value}
            changed[run.row] = changed.get(run.row, set()) | keys - {"d_ff"}
    newer = {"positions", "rope_theta", "norm", "activation", "feed_forward", "n_kv_heads", "bias"}
    assert changed == {
        "base": set(),
        "base_longer": set(),
        "rotary": {"positions", "rope_theta"},
        "rms_norm": {"norm"},
        "swiglu": {"activation", "feed_forward"},
        "kv_heads_1": {"n_kv_heads"},
        "kv_heads_2": {"n_kv_heads"},
        "qk_norm": {"qk_norm"},
        "window": {"window", "window_pattern"},
        "sandwich": {"norm_placement"},
        "parallel": {"parallel"},
        "registers": {"n_registers"},
        "muon": {"name", "momentum"},
        "llama": newer,
    }
    for run in runs:
        assert OptimizerConfig(**section(run, "optimizer")).name != "sgd"
