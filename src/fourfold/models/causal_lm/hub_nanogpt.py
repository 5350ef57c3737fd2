"""Import of nanoGPT checkpoints, files with settings that `torch.save` wrote, as a `CausalLM`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fourfold.hub.architecture import Json
from fourfold.hub.keymap import KEEP, SPLIT_QKV
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.models.causal_lm.hub import keymap

_COMPILED_PREFIX = "_orig_mod."  # torch.compile adds it to every name

# The names of GPT-2, but torch.nn.Linear in place of Conv1D.
_KEYMAP = keymap("wte", "wpe", SPLIT_QKV, KEEP)


def read_checkpoint(
    content: Mapping[str, Any], settings: Json, dtype: torch.dtype | None
) -> CausalLM | None:
    """Build the model of a checkpoint of nanoGPT in eval mode; None for another file.

    Args:
        content: Content of the file.
        settings: Ignored; nanoGPT has no config.json.
        dtype: Data type of the weights; None means fp32.

    Raises:
        InputError: Settings or weights are not those of nanoGPT.
    """
    if not (isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)):
        return None
    found: dict[str, Any] = content["model_args"]
    config = CausalLMConfig(
        d_model=found["n_embd"],
        n_layers=found["n_layer"],
        n_heads=found["n_head"],
        d_ff=4 * found["n_embd"],
        activation="gelu",
        bias=found["bias"],
        dropout=found["dropout"],
        attn_dropout=found["dropout"],
        vocab_size=found["vocab_size"],
        max_len=found["block_size"],
    )
    state = content["model"].items()
    tensors = {name.removeprefix(_COMPILED_PREFIX): x for name, x in state}
    model = _KEYMAP.build_model(partial(CausalLM, config), config, tensors, dtype)
    model.format_name = "nanoGPT"
    return model
