"""nanoGPT as a benchmark peer, imported from its model.py, since it is not a package."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from fourfold.errors import InputError
from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def causal_lm(shape: Shape, dropout: float, file: str) -> Contender:
    """Build nanoGPT's GPT with biases, which is GPT-2, from its model.py."""
    module: Any = import_file(file)
    config = module.GPTConfig(
        block_size=shape.length,
        vocab_size=shape.n_out,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        dropout=dropout,
        bias=True,
    )
    return Contender(module.GPT(config), _loss)


def import_file(file: str) -> ModuleType:
    """Import nanoGPT's model.py, or raise InputError."""
    if not Path(file).is_file():
        raise InputError(f"must be an existing file, got {file}", option="--nanogpt")
    name = "fourfold_benchmark_nanogpt"
    spec = spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[name] = module  # required by the dataclasses in the file
    spec.loader.exec_module(module)
    if not hasattr(module, "GPT") or not hasattr(module, "GPTConfig"):
        raise InputError("must be nanoGPT's model.py, but defines no GPT and GPTConfig", file=file)
    return module


def _loss(model: Any, batch: Any) -> Tensor:
    return model(batch.ids, batch.targets)[1]


FAMILIES = {"causal_lm": causal_lm}
