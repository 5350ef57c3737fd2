"""Rounded weights and the layers of a model as data, from which a page computes the model itself.

`pack_model` describes a model for `engine.js`. The description, called the index, is a tree of JSON
values in which each module of the model is a dictionary of its options, its sub-modules and the
names of its tensors. It also has the place of each tensor in the bytes of all tensors. What depends
on positions only, such as rotary angles, sinusoids and relative biases, is stored as a table, so
the page has no formulas of its own for it.

Shapes: N rows, K columns, T tokens, P rotated pairs of channels, H heads, D model width.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention, softmax
from fourfold.core.block import Stack
from fourfold.core.feed_forward import ACTIVATIONS, FeedForward
from fourfold.core.validation import check_choice
from fourfold.edits.contexts import edit_targets
from fourfold.errors import InputError
from fourfold.generation.step import eval_copy
from fourfold.kernels.int8 import quantize_rows
from fourfold.layers.base_model import Model
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.image_positions import BlockWithPositions, PositionedStack
from fourfold.layers.positions import PositionTable
from fourfold.layers.token_embedding import TokenEmbedding

MAX_TOKENS = 512  # longest text that a page reads
FP16_PARAMETERS = 3_000_000  # largest number of parameters that are stored in fp16 by default
MODELS = ("CausalLM", "MaskedLM", "EncoderDecoder", "T5", "CompositeEncoderDecoder", "ViT")
STACKS = ("Stack", "BiasedStack", "PositionedStack", "AxialRotaryStack")
# Classes of modules that the page computes, with the attributes that it needs.
MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(MODELS, ()),
    "ViT": ("pool", "distillation", "n_prefix"),  # of its config
    **dict.fromkeys(STACKS, ("windows",)),
    **dict.fromkeys(("Linear", "ClassHead", "Conv2d", "Embedding"), ()),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), ("eps",)),
    **dict.fromkeys(("PositionTable", "AxialPositions", "BlockWithPositions"), ()),
    "Attention": ("n_heads", "n_kv_heads", "scale", "norm_by_head"),
    "Block": ("norm_placement", "parallel"),
    "FeedForward": (),
    "PatchEmbedding": ("n_placed", "n_channels", "image_size"),
    "TokenEmbedding": ("scale",),
    "VocabularyHead": ("scale", "logit_cap"),
}
# Modules that are the identity in evaluation, or that the model does not call for its logits.
SKIPPED = ("Identity", "Dropout", "DropPath", "PooledClassifier")
# Reasons why the page cannot compute models and modules of other classes.
REASONS = {
    "CLIP": "reads an image and a text",
    "LadderLM": "is a baseline without whole blocks",
    "LadderClassifier": "is a baseline without whole blocks",
    "Sequential": "has a convolutional stem",
}


@dataclass(frozen=True, eq=False)
class PackedModel:
    """Model for a page: the rounded model in fp32, its index, and the bytes of its tensors."""

    model: Model
    index: dict[str, Any]
    data: bytes


@torch.no_grad()
def pack_model(model: Model, precision: int | None = None) -> PackedModel:
    """Round the weights of a model and store it for `engine.js`.

    Matrices are stored in fp16, or in int8 with a scale for each row; vectors stay in fp32.

    Args:
        model: A causal LM, masked LM, encoder-decoder for texts, or Vision Transformer.
        precision: Bits of a weight, 16 or 8; None means 16 up to `FP16_PARAMETERS` parameters.

    Raises:
        InputError: The model has a part that the page cannot compute.

    Example:
        >>> import fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, d_model=32, n_heads=4, vocab_size=50)
        >>> packed = pack_model(model)
        >>> packed.index["tensors"]["embed.tokens.weight"]
        {'kind': 'float16', 'shape': [50, 32], 'offset': 0}
    """
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    precision = precision or (16 if n_parameters <= FP16_PARAMETERS else 8)
    check_choice("precision", str(precision), ("8", "16"))
    if model.is_recurrent:
        _refuse("has a recurrent state or convolutions")
    if type(model).__name__ not in MODELS:
        names = [cls.__name__ for cls in type(model).__mro__]
        other = f"is a {names[0]}, and none of {', '.join(MODELS)}"
        _refuse(next((REASONS[name] for name in names if name in REASONS), other))
    if model.accepts_images and model.can_generate:
        _refuse("reads an image and writes a text")
    copy = deepcopy(eval_copy(model)).float().cpu()
    packer = _Packer(copy, precision)
    index = {
        "model": packer.describe(copy, "model"),  # fills the tensors
        "causal": model.can_generate,
        "max_len": packer.max_len,
        "edits": {name: target.size for name, target in edit_targets(copy).items()},
        "tensors": packer.tensors,
    }
    return PackedModel(copy, index, bytes(packer.data))


def _refuse(reason: str) -> NoReturn:
    raise InputError(f"{reason}, which a live page cannot compute", option="the model")


class _Packer:
    """Index and bytes of a model, whose weights it rounds in place as it stores them."""

    def __init__(self, model: Any, precision: int) -> None:
        self.precision = precision
        self.names = {id(weight): name for name, weight in model.named_parameters()}
        self.score_cap = getattr(model.config, "score_cap", None)
        self.max_len = min(getattr(model.config, "max_len", None) or MAX_TOKENS, MAX_TOKENS)
        self.tensors: dict[str, dict[str, Any]] = {}
        self.data = bytearray()

    def parameter(self, x: Any) -> str:
        """Round a parameter, store it once, and return its name in the model."""
        name = self.names[id(x)]
        if name not in self.tensors:
            kind = "float32" if x.ndim < 2 else "int8" if self.precision == 8 else "float16"
            rows = x.data if x.ndim < 2 else x.data.flatten(1)
            x.data = self.store(name, rows, kind).reshape(x.shape)
        return name

    def store(self, name: str, x: Tensor, kind: str = "float32") -> Tensor:
        """Store a tensor, and return its values as they are stored."""
        if kind == "float16" and not bool(x.half().isfinite().all()):
            kind = "float32"
        self.tensors[name] = {"kind": kind, "shape": list(x.shape), "offset": len(self.data)}
        if kind == "int8":
            values, scales = quantize_rows(x)
            self.data += scales.numpy().astype("<f4").tobytes() + values.numpy().tobytes()
            return values * scales
        if kind == "float16":  # all low bytes before all high bytes, which compresses better
            x = x.half()
            self.data += x.numpy().astype("<f2").reshape(-1, 1).view("u1").T.tobytes()
            return x.float()
        self.data += x.contiguous().numpy().astype("<f4").tobytes()
        return x

    def table(self, name: str, x: Tensor) -> str:
        """Store a table in fp32, and return its name."""
        self.store(name, x)
        return name

    def describe(self, module: Any, path: str) -> Any:
        """Describe a module of the model; a list of modules gives a list."""
        kind = type(module).__name__
        if isinstance(module, nn.ModuleList):
            return [self.describe(child, f"{path}.{i}") for i, child in enumerate(module)]
        if kind in SKIPPED:
            return None
        if kind not in MODULES:
            _refuse(REASONS.get(kind, f"has a {kind}"))
        options = getattr(module, "config", module)
        described = {"kind": kind, **{name: getattr(options, name) for name in MODULES[kind]}}
        for name, parameter in module.named_parameters(recurse=False):
            described[name] = self.parameter(parameter)
        described |= self.special(module, path)
        for name, child in module.named_children():
            if name not in described:
                described[name] = self.describe(child, f"{path}.{name}")
        return described

    def special(self, module: Any, path: str) -> dict[str, Any]:
        """Describe what the parameters, sub-modules and attributes of a module do not say."""
        match module:
            case Stack():
                return self.positions(module, path)
            case Attention():
                if module.normalize is softmax:
                    return {"cap": None}
                if self.score_cap is None or not isinstance(module.normalize, partial):
                    _refuse("has attention weights that are no softmax")
                return {"cap": self.score_cap}
            case FeedForward():
                return {"activation": _activation(module.activation)}
            case VocabularyHead():  # the matrix may be that of the embedding
                activation = _activation(module.activation)
                return {"activation": activation, "weight": self.parameter(module.weight)}
            case TokenEmbedding():  # the vectors may be those of another embedding
                return {"tokens": self.describe(module.tokens, path)}
            case BlockWithPositions():  # the table may be that of another block
                return {"positions": self.describe(module.positions, path)}
            case PositionTable() if not isinstance(module.weight, nn.Parameter):
                return {"weight": self.table(f"{path}.positions", module.weight)}
        return {}

    def positions(self, stack: Any, path: str) -> dict[str, Any]:
        """Store rotary angles (T, P) of each kind of layer, and biases (H, 2 T - 1) by distance."""
        rotations = {}
        for window in dict.fromkeys(stack.windows):
            turns = stack._rotation(slice(0, self.max_len), torch.empty(0), window)
            name = f"{path}.{window}"
            rotations[str(window)] = turns and [
                self.table(f"{name}.{i}", turn) for i, turn in enumerate(turns)
            ]
        bias: Any = getattr(stack, "bias", None)
        if bias is None:
            return {"rotations": rotations, "bias": None}
        is_image = isinstance(stack, PositionedStack)
        square = bias() if is_image else bias(self.max_len, self.max_len)  # (1, H, T, T)
        by_distance = torch.cat([square[0, :, -1], square[0, :, 0, 1:]], dim=1)
        return {"rotations": rotations, "bias": self.table(f"{path}.bias", by_distance)}


def _activation(function: Any) -> str:
    """Return the name of an activation, by its values."""
    x = torch.linspace(-3, 3, 61)
    for name, known in ACTIVATIONS.items():
        if torch.equal(known(x), function(x)):
            return name
    _refuse("has an activation other than " + ", ".join(ACTIVATIONS))
