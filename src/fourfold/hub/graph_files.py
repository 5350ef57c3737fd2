"""Files of torch.export and ONNX with the graphs of a model, and the check of these files."""

import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as shape_config

from fourfold.core.attention import attention_backend
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.hub.directory import write_json
from fourfold.hub.graphs import Graph, make_graphs

# Extension of the files, and attention backend. The output of attention for a query without allowed
# keys is 0. ONNX has no attention operator with this output, so the naive backend is used.
FORMATS = {"torch-export": ("pt2", "sdpa"), "onnx": ("onnx", "naive")}
METADATA = "export.json"
TOLERANCE = 1e-5  # maximum difference, divided by the largest logit if the logit exceeds 1
# Sizes of the dynamic dimensions when a graph is traced, and when it is compared with the model.
TRACED = {"batch": 2, "length": 3, "past": 4, "past + length": 7, "source": 5}
COMPARED = (
    {"batch": 3, "length": 5, "past": 2, "source": 4},
    {"batch": 1, "length": 1, "past": 0, "source": 1},
)


def write_graphs(model: Any, folder: Path, file_format: str, facts: Mapping[str, Any]) -> list[str]:
    """Write the graphs of a model and their description, export.json, to a folder.

    The graphs are loaded from the files, and run on random inputs beside the model.

    Args:
        model: The model, in fp32 on the CPU and in eval mode.
        folder: An existing directory.
        file_format: "torch-export" or "onnx".
        facts: Further entries of export.json, such as special token ids.

    Returns:
        Lines to print, with the names of the files and the largest difference.

    Raises:
        InputError: Packages are missing, the model has no graphs or cannot be traced, or a graph
            differs from the model by more than `TOLERANCE`.
    """
    check_choice("--format", file_format, tuple(FORMATS))
    if file_format == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        message = "onnx needs extra packages: pip install 'fourfold[onnx]'"
        raise InputError(message, option="--format")
    suffix, backend = FORMATS[file_format]
    graphs = make_graphs(model)
    files = {name: f"{name}.{suffix}" for name in graphs}
    with torch.no_grad():
        for name, graph in graphs.items():
            try:
                with attention_backend(backend):
                    _write_graph(graph, folder / files[name], file_format)
            except OSError:
                raise
            except Exception as error:  # torch raises many classes for code that it cannot trace
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                message = f"{file_format} cannot represent the {name} of this model: {reason}"
                raise InputError(message, option="--format") from error
        checked = "not compared with the model, because onnxruntime is not installed"
        if file_format != "onnx" or find_spec("onnxruntime"):
            difference = _compare(model, graphs, {n: folder / f for n, f in files.items()})
            checked = f"largest difference to the model {difference:.1e}"
    description = {"format": file_format, **facts, **_describe(model, graphs, files)}
    write_json(folder / METADATA, description)
    return [f"{type(model).__name__} as {', '.join(files.values())}; {checked}"]


def _write_graph(graph: Graph, file: Path, file_format: str) -> None:
    """Trace a graph with dynamic dimensions, and write the traced program to a file."""
    inputs = tuple(spec.sample(TRACED) for spec in graph.inputs)
    shapes = tuple(
        {i: torch.export.Dim.AUTO for i, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in graph.inputs
    )
    # Otherwise the graph would be valid only for sizes of at least 2.
    with shape_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        program = torch.export.export(graph, inputs, dynamic_shapes=(shapes,), strict=False)
    if file_format == "torch-export":
        torch.export.save(program, file)
        return
    names = [spec.name for spec in graph.inputs]
    onnx_program: Any = torch.onnx.export(
        program, input_names=names, output_names=graph.outputs, dynamo=True, verbose=False
    )
    onnx_program.save(file)


def load_graph(file: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load a .pt2 or .onnx file as a function from input tensors to output tensors, on the CPU."""
    if file.suffix == ".pt2":
        module = torch.export.load(file).module(check_guards=False)
        return lambda inputs: list(module(*inputs))
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]

    def run(inputs: list[Tensor]) -> list[Tensor]:
        arrays = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return list(map(torch.from_numpy, session.run(None, arrays)))

    return run


def relative_difference(expected: Tensor, found: Tensor) -> float:
    """Return the largest difference of two tensors; infinity if their shapes differ.

    It is divided by the largest absolute value of `expected`, if this value exceeds 1.
    """
    if expected.shape != found.shape:
        return math.inf
    return float((found - expected).abs().max()) / max(float(expected.abs().max()), 1.0)


def _compare(model: Any, graphs: Mapping[str, Graph], files: Mapping[str, Path]) -> float:
    """Return the largest relative difference of outputs of graphs in files and in this process."""
    longest = max((getattr(model.config, "max_len", None) or 1024) // 2, 1)
    largest = 0.0
    for name, graph in graphs.items():
        run = load_graph(files[name])
        for sizes in COMPARED:
            sizes = {key: min(size, longest) for key, size in sizes.items()}
            sizes["past + length"] = sizes["past"] + sizes["length"]
            inputs = [spec.sample(sizes) for spec in graph.inputs]
            for got, expected in zip(run(inputs), graph(*inputs), strict=True):
                difference = relative_difference(expected, got)
                if not difference <= TOLERANCE:  # also for NaN
                    message = f"differs from the model by {difference:.1e}, more than"
                    message += f" {TOLERANCE:.0e}"
                    raise InputError(message, file=files[name].name, option="the graph")
                largest = max(largest, difference)
    return largest


def _describe(model: Any, graphs: Mapping[str, Graph], files: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of export.json that describes the model and its graphs."""
    content: dict[str, Any] = {
        "fourfold": version("fourfold"),
        "model": type(model).__name__,
        "max_len": getattr(model.config, "max_len", None),
        "preprocessing": {k: v for k, v in model.artifacts.items() if k != "tokenizer"},
        "graphs": {
            name: {
                "file": files[name],
                "inputs": [
                    {"name": x.name, "dtype": x.dtype, "shape": list(x.shape)} for x in graph.inputs
                ],
                "outputs": graph.outputs,
            }
            for name, graph in graphs.items()
        },
    }
    # CLIP has a scale, and SigLIP also a bias.
    scalars = {"logit_scale": "scale", "logit_bias": "logit_bias"}
    values = {key: getattr(model, name, None) for key, name in scalars.items()}
    return content | {key: x.item() for key, x in values.items() if x is not None}
