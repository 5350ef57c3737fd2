"""nanoGPT as a benchmark peer, imported from its model.py, since it is not a package."""

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from fourfold.errors import InputError
from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def causal_lm(shape: Shape, dropout: float, file: str) -> Contender:
    """Build nanoGPT's GPT with biases, which is GPT-2.

    Raises:
        InputError: The file is not nanoGPT's model.py.
    """
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
    """Import nanoGPT's model.py.

    Raises:
        InputError: There is no such file, or it is not nanoGPT's model.py.
    """
    if not Path(file).is_file():
        raise InputError(f"must be an existing file, got {file}", option="--nanogpt")
    name = "fourfold_benchmark_nanogpt"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError("must be a Python file", option="--nanogpt", file=file)
    module = module_from_spec(spec)
    sys.modules[name] = module  # required by the dataclasses in the file
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"cannot be imported: {error}", option="--nanogpt", file=file) from error
    if not hasattr(module, "GPT") or not hasattr(module, "GPTConfig"):
        raise InputError(
            "must be nanoGPT's model.py, but defines no GPT and GPTConfig",
            option="--nanogpt",
            file=file,
        )
    return module


def _loss(model: Any, batch: Any) -> Tensor:
    return model(batch.ids, batch.targets)[1]


def _requires_file(shape: Shape, dropout: float) -> Contender:
    raise AssertionError("nanoGPT is built from a file by `causal_lm`")


FAMILIES: dict[str, Callable[[Shape, float], Contender]] = {"causal_lm": _requires_file}
