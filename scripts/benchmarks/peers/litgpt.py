"""litgpt as a benchmark peer: its GPT with the options of Llama and the loss of its training."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def llama(shape: Shape, dropout: float) -> Contender:
    """Build litgpt's GPT, which has no dropout, with tied embeddings and its own initialization."""
    from litgpt import GPT, Config

    n_kv_heads, d_ff = shape.llama
    config = Config(
        block_size=shape.length,
        vocab_size=shape.n_out,
        padded_vocab_size=shape.n_out,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_query_groups=n_kv_heads,
        n_embd=shape.d_model,
        intermediate_size=d_ff,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config)
    model.apply(model._init_weights)
    model.lm_head.weight = model.transformer.wte.weight
    return Contender(model, _loss)


def _loss(model: Any, batch: Any) -> Tensor:
    from litgpt.utils import chunked_cross_entropy

    return chunked_cross_entropy(model(batch.ids), batch.targets)


FAMILIES: dict[str, Callable[[Shape, float], Contender]] = {"llama": llama}
