"""nanoGPT, of which the user names the file: it is no package."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from fourfold.bench.shapes import Shape
from fourfold.bench.ways import Way
from fourfold.core.errors import InputError


def needs_file(shape: Shape, dropout: float) -> Way:
    """What stands in the table for `causal_lm`."""
    raise AssertionError("nanoGPT is built from a file")


def causal_lm(shape: Shape, dropout: float, file: str) -> Way:
    """Its GPT with biases, which is GPT-2.

    Raises:
        InputError: The file is not nanoGPT's model.py.
    """
    code: Any = read(file)
    config = code.GPTConfig(
        block_size=shape.length, vocab_size=shape.n_out, n_layer=shape.n_layers,
        n_head=shape.n_heads, n_embd=shape.d_model, dropout=dropout, bias=True,
    )  # fmt: skip
    return Way(code.GPT(config), _loss)


def read(file: str) -> ModuleType:
    """The module in a file.

    Raises:
        InputError: There is none, or it is another one.
    """
    if not Path(file).is_file():
        raise InputError(f"--nanogpt is {file}, but there is no such file")
    name = "fourfold_bench_nanogpt"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: not a file of Python")
    module = module_from_spec(spec)
    sys.modules[name] = module  # its dataclass looks itself up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file}: does not run: {error}") from error
    if not hasattr(module, "GPT") or not hasattr(module, "GPTConfig"):
        raise InputError(f"{file}: not nanoGPT's model.py: it has no GPT and GPTConfig")
    return module


def _loss(model: Any, batch: Any) -> Tensor:
    return model(batch.ids, batch.targets)[1]
