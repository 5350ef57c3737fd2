"""Quantization of a model to int8, for smaller and faster inference on CPUs.

Shapes: N outputs or tokens, K inputs, D model width.
"""

from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.kernels.int8 import Int8Matrix, int8_linear, quantize_rows
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.token_embedding import TokenEmbedding

QUANTIZATIONS = ("int8",)


class _Int8Layer(nn.Module):
    """Base class of layers with an int8 matrix: `values` (N, K), and `scales` (N, 1) of rows."""

    values: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        values, scales = quantize_rows(weight.detach().float())
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    @property
    def weight(self) -> Int8Matrix:
        """Int8 matrix (N, K), made of the buffers `values` and `scales`."""
        return Int8Matrix(self.values, self.scales)


class Int8Linear(_Int8Layer):
    """Linear layer with weights in int8, for inference, made from a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.weight)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer to x (..., K), and return the result (..., N)."""
        return int8_linear(x, self.weight, self.bias)


class Int8Embedding(_Int8Layer):
    """Token embedding (N, D) in int8, for inference; an output head may share its matrix."""

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__(layer.weight)
        self.num_embeddings, self.embedding_dim = layer.weight.shape
        self.dtype = layer.weight.dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors (..., D) of token ids (...)."""
        return (self.values[ids] * self.scales[ids]).to(self.dtype)


def quantize(model: nn.Module, name: str | None, option: str = "quantize") -> None:
    """Replace the linear layers and token embeddings of a model on the CPU by int8, in place.

    Other weights keep their data type. The model can no longer be trained or saved. Errors call the
    value `name` (int8, or None for no change) by the name `option`.

    Raises:
        InputError: `name` is unknown, or the model is not on the CPU.
    """
    if name is None:
        return
    if name not in QUANTIZATIONS:
        raise InputError(f"must be int8 or not given, got {name!r}", option=option)
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise InputError(f"int8 needs the device cpu, got {device}", option=option)
    replaced: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            replaced[module] = Int8Linear(module)
        elif isinstance(module, TokenEmbedding) and module.tokens not in replaced:
            replaced[module.tokens] = Int8Embedding(module.tokens)
    _replace(model, replaced)


def _replace(model: nn.Module, replaced: dict[nn.Module, nn.Module]) -> None:
    """Replace submodules of a model in place, also in modules that share a token embedding."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child in replaced:
                setattr(module, name, replaced[child])
        if isinstance(module, TokenEmbedding) and module.tokens in replaced:
            object.__setattr__(module, "tokens", replaced[module.tokens])
        if isinstance(module, VocabularyHead):
            module.share(replaced.get(module.embedding, module.embedding))
