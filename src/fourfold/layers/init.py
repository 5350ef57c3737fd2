"""Weight initialization, one function per paper, called at the end of a model's `__init__`.

N(0, s) is the normal distribution with mean 0 and standard deviation s, and D is the model width.
"""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import init

from fourfold.core.attention import Attention
from fourfold.core.feed_forward import FeedForward
from fourfold.core.validation import check_choice
from fourfold.layers.patch_embedding import PatchEmbedding
from fourfold.layers.positions import PositionTable

truncated_normal = partial(init.trunc_normal_, std=0.02, a=-0.04, b=0.04)
normal = partial(init.normal_, std=0.02)


def vaswani(model: nn.Module) -> None:
    """Initialize the weights as tensor2tensor 1.0 does; Vaswani et al. 2017 do not describe it.

    Matrices are drawn by Glorot's uniform rule, embeddings and learned positions from N(0,
    1/sqrt(D)). Biases are 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.xavier_uniform_(module.weight)
            _zero_bias(module)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
            init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)


def gpt2(model: nn.Module) -> None:
    """Draw weights from N(0, 0.02), positions from N(0, 0.01), and scale residual projections.

    Source: Radford et al. 2019, section 2.3; the 0.01 of the positions comes from OpenAI's code.
    The standard deviation of the last matrix of each sub-layer is 0.02, divided by the square root
    of the number of sub-layers.
    """
    fill_weights(model, normal)
    for module in model.modules():
        if isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
            init.normal_(module.weight, std=0.01)
    sublayers = [m for m in model.modules() if isinstance(m, Attention | FeedForward)]
    for layer in sublayers:
        projection = layer.out if isinstance(layer, Attention) else layer.down
        init.normal_(projection.weight, std=0.02 * len(sublayers) ** -0.5)


def fill_weights(model: nn.Module, fill: Callable[[Tensor], object]) -> None:
    """Fill matrices, learned positions and prefix tokens by a function, and set biases to 0.

    `fill` overwrites a tensor in place, such as a function of `torch.nn.init`.
    """
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
    "bert": partial(fill_weights, fill=truncated_normal),  # BERT's code; DeiT
    "gpt": partial(fill_weights, fill=normal),  # GPT-1, section 4.1
    "gpt2": gpt2,
}


def initialize(
    model: nn.Module, name: str, inits: Mapping[str, Callable[[nn.Module], None]] = INITS
) -> None:
    """Initialize a model in place by a function of `inits`; norms keep weights 1 and biases 0.

    Raises:
        InputError: `name` is not a name in `inits`.
    """
    check_choice("init", name, tuple(inits))
    inits[name](model)
