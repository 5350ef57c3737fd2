"""litgpt as a benchmark peer: its GPT with the options of Llama and the loss of its training.

Shapes: B rows, T prompt tokens, N new tokens.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def llama(shape: Shape, dropout: float) -> Contender:
    """Build litgpt's GPT, which has no dropout, with tied embeddings and its own initialization."""
    n_kv_heads, d_ff = shape.llama
    model = _gpt(
        block_size=shape.length,
        padded_vocab_size=shape.n_out,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_query_groups=n_kv_heads,
        n_embd=shape.d_model,
        intermediate_size=d_ff,
    )
    model.apply(model._init_weights)
    return Contender(model, _loss)


def load_llama(folder: str, dtype: torch.dtype) -> Any:
    """Load a Llama from a directory in the format of transformers, with litgpt's own conversion."""
    from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama

    content = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    model = _gpt(
        block_size=content["max_position_embeddings"],
        padded_vocab_size=content["vocab_size"],
        n_layer=content["num_hidden_layers"],
        n_head=content["num_attention_heads"],
        n_query_groups=content["num_key_value_heads"],
        n_embd=content["hidden_size"],
        intermediate_size=content["intermediate_size"],
        norm_eps=content["rms_norm_eps"],
    )
    state: dict[str, Tensor] = {}
    copy_weights_hf_llama(model.config, {}, state, load_file(Path(folder, "model.safetensors")))
    model.load_state_dict(state)
    return model.to(dtype)


def greedy(model: Any, ids: Tensor, n_new: int) -> Tensor:
    """Generate N tokens after prompts (B, T) with litgpt's cache, and return them (B, N)."""
    n_prompt = ids.shape[1]
    dtype = model.lm_head.weight.dtype
    tokens = []
    with torch.inference_mode():
        model.max_seq_length = n_prompt + n_new  # attention reads no more of the cache than needed
        model.set_kv_cache(len(ids), device=ids.device, dtype=dtype)
        positions = torch.arange(n_prompt, device=ids.device)
        for end in range(n_prompt, n_prompt + n_new):
            ids = model(ids, positions, input_pos_maxp1=end)[:, -1:].argmax(-1)
            positions = torch.tensor([end], device=ids.device)
            tokens.append(ids)
        return torch.cat(tokens, 1)


def _gpt(**sizes: Any) -> Any:
    """Build litgpt's GPT with the components of Llama and tied embeddings."""
    from litgpt import GPT, Config

    config = Config(
        **sizes,
        vocab_size=sizes["padded_vocab_size"],
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return model


def _loss(model: Any, batch: Any) -> Tensor:
    from litgpt.utils import chunked_cross_entropy

    return chunked_cross_entropy(model(batch.ids), batch.targets)


FAMILIES = {"llama": llama}
