"""Import of the files of llama2.c (.bin, version 0), as a `CausalLM`."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.hub.architecture import Json
from fourfold.hub.directory import LLAMA2C
from fourfold.hub.transformers_format import SourceCheckpoint
from fourfold.models import CausalLM
from fourfold.models.causal_lm.hub_llama import LLAMA

# Keys of config.json for the int32 numbers before the weights.
_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "max_position_embeddings"),
)
# Training texts begin with the token 1, and have no token at their end.
_ENDS = {"bos_token_id": 1, "eos_token_id": 1}


def read_checkpoint(
    content: Mapping[str, Any], settings: Json, dtype: torch.dtype | None
) -> CausalLM | None:
    """Build the model of a file of llama2.c in eval mode; None for another file.

    Args:
        content: All numbers of the file, fp32, by the name of the format.
        settings: Ignored; llama2.c has no config.json.
        dtype: Data type of the weights; None means fp32.

    Raises:
        InputError: The sizes at the beginning of the file do not match its length.
    """
    if LLAMA2C not in content:
        return None
    numbers: Tensor = content[LLAMA2C]
    header = numbers[: len(_SIZES)].view(torch.int32).tolist()
    width, d_ff, n_layers, n_heads, n_kv_heads, vocab_size, max_len = header
    d_head, layer = width // max(n_heads, 1), "model.layers.{}."
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (abs(vocab_size), width),
        layer + "input_layernorm.weight": (n_layers, width),
        layer + "self_attn.q_proj.weight": (n_layers, n_heads * d_head, width),
        layer + "self_attn.k_proj.weight": (n_layers, n_kv_heads * d_head, width),
        layer + "self_attn.v_proj.weight": (n_layers, n_kv_heads * d_head, width),
        layer + "self_attn.o_proj.weight": (n_layers, width, n_heads * d_head),
        layer + "post_attention_layernorm.weight": (n_layers, width),
        layer + "mlp.gate_proj.weight": (n_layers, d_ff, width),
        layer + "mlp.down_proj.weight": (n_layers, width, d_ff),
        layer + "mlp.up_proj.weight": (n_layers, d_ff, width),
        "model.norm.weight": (width,),
        "tables": (2, max_len, d_head // 2),  # cosines and sines of rotary positions
        "lm_head.weight": (abs(vocab_size), width),
    }
    if vocab_size > 0:  # a negative size marks an output matrix of its own
        del shapes["lm_head.weight"]
    sizes = [prod(shape) for shape in shapes.values()]
    fits = min(*header[:5], *sizes) > 0 and sum(sizes) + len(_SIZES) == len(numbers)
    if not fits or width % n_heads + d_head % 2 + n_heads % n_kv_heads:
        message = f"is no llama2.c model: {len(numbers)} numbers do not suit the sizes {header}"
        raise InputError(message, option="the file")
    tensors: dict[str, Tensor] = {}
    parts = numbers[len(_SIZES) :].split(sizes)
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        x = part.view(shape)
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs of channels 2i and 2i + 1
            x = x.unflatten(1, (-1, d_head // 2, 2)).transpose(2, 3).flatten(1, 3)
        tensors |= {name.format(i): x[i] for i in range(n_layers)} if "{}" in name else {name: x}
    del tensors["tables"]
    others = {"rms_norm_eps": 1e-5, "tie_word_embeddings": vocab_size > 0}
    settings = dict(zip(_SIZES, header, strict=True)) | {"vocab_size": abs(vocab_size)}
    config: Any = LLAMA.read_config(settings | others, tensors)
    model = LLAMA.keymap.build_model(partial(CausalLM, config), config, tensors, dtype)
    model.source = SourceCheckpoint(LLAMA.write_config(config), {}, False, _ENDS)
    model.format_name = "llama2.c"
    return model
