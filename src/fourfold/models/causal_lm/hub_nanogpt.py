"""Import of nanoGPT checkpoints, files with settings that `torch.save` wrote, as a `CausalLM`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fourfold.errors import InputError
from fourfold.hub.keymap import KEEP, SPLIT_QKV
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.models.causal_lm.hub import keymap

_COMPILED_PREFIX = "_orig_mod."  # torch.compile adds it to every name

# The names of GPT-2, but torch.nn.Linear in place of Conv1D.
_KEYMAP = keymap("transformer.wte.weight", "transformer.wpe.weight", SPLIT_QKV, KEEP)


def is_nanogpt(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a file, a dict, is a checkpoint of nanoGPT."""
    return isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)


def read_nanogpt_model(content: Mapping[str, Any], dtype: torch.dtype | None) -> CausalLM:
    """Build the model of a nanoGPT checkpoint (the content of the file), in eval mode.

    Raises:
        InputError: Settings or weights are not those of nanoGPT.
    """
    settings: dict[str, Any] = content["model_args"]
    try:
        options = {
            "d_model": settings["n_embd"],
            "n_layers": settings["n_layer"],
            "n_heads": settings["n_head"],
            "d_ff": 4 * settings["n_embd"],
            "activation": "gelu",
            "bias": settings["bias"],
            "dropout": settings["dropout"],
            "attn_dropout": settings["dropout"],
            "vocab_size": settings["vocab_size"],
            "max_len": settings["block_size"],
        }
    except KeyError as error:
        raise InputError(f"has no entry {error.args[0]}", option="model_args") from error
    state = content["model"].items()
    tensors = {name.removeprefix(_COMPILED_PREFIX): x for name, x in state}
    config = CausalLMConfig(**options)
    model = _KEYMAP.build_model(partial(CausalLM, config), config, tensors, dtype)
    model.format_name = "nanoGPT"
    return model
