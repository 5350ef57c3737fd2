"""First weights, one function per paper, called once at the end of a model's `__init__`."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import init

from fourfold.core.attention import Attention
from fourfold.core.config import check_word
from fourfold.core.embeddings import PatchEmbedding
from fourfold.core.positions import PositionTable
from fourfold.core.stack import FeedForward

_truncated = partial(init.trunc_normal_, std=0.02, a=-0.04, b=0.04)  # cut at two deviations
_normal = partial(init.normal_, std=0.02)


def vaswani(model: nn.Module) -> None:
    """Glorot uniform matrices, N(0, 1/sqrt(D)) embeddings (tensor2tensor's first release)."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.xavier_uniform_(module.weight)
            _zero_bias(module)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
            init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


def bert(model: nn.Module) -> None:
    """Everything N(0, 0.02) cut at two deviations, biases 0 (BERT's code; also DeiT)."""
    _fill(model, _truncated)


def gpt(model: nn.Module) -> None:
    """Everything N(0, 0.02), biases 0 (GPT-1, section 4.1)."""
    _fill(model, _normal)


def gpt2(model: nn.Module) -> None:
    """GPT-1's, with N(0, 0.01) positions (the code) and residual matrices scaled down.

    A matrix that writes into the residual stream is divided by the square root of the number of
    residual layers (GPT-2, section 2.3).
    """
    _fill(model, _normal)
    writers = [m.out if isinstance(m, Attention) else m.down for m in model.modules()
               if isinstance(m, Attention | FeedForward)]  # fmt: skip
    for module in model.modules():
        if isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
            init.normal_(module.weight, std=0.01)
    for writer in writers:
        init.normal_(writer.weight, std=0.02 * len(writers) ** -0.5)


def _fill(model: nn.Module, fill: Callable[[Tensor], object]) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            fill(module.weight)
            _zero_bias(module)
        elif isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
            fill(module.weight)
        elif isinstance(module, PatchEmbedding) and module.prefix is not None:
            fill(module.prefix)


def _zero_bias(module: nn.Module) -> None:
    bias = getattr(module, "bias", None)
    if bias is not None:
        init.zeros_(bias)


INITS: dict[str, Callable[[nn.Module], None]] = {
    "vaswani": vaswani,
    "bert": bert,
    "gpt": gpt,
    "gpt2": gpt2,
}


def initialise(model: nn.Module, name: str) -> None:
    """Fill all parameters of `model` by the row `name` of INITS; norms keep 1 and 0."""
    check_word("init", name, tuple(INITS))
    INITS[name](model)
