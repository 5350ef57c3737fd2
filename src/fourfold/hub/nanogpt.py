"""Checkpoints of nanoGPT: one file of torch with its settings beside the weights."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.hub.keymap import FUSED, Copy, Ignored, KeyMap, Rule
from fourfold.models import CausalLM, CausalLMConfig

# GPT-2's names, but linear layers as torch lays them out.
_KEYS = KeyMap(
    (
        Rule("embed.tokens.weight", "transformer.wte.weight"),
        Rule("embed.positions.weight", "transformer.wpe.weight"),
        Rule(
            tuple("stack.blocks.{i}.attn." + part + ".{p}" for part in "qkv"),
            "transformer.h.{i}.attn.c_attn.{p}",
            FUSED,
        ),
        Rule("stack.blocks.{i}.attn.out.{p}", "transformer.h.{i}.attn.c_proj.{p}"),
        Rule("stack.blocks.{i}.attn_norm.{p}", "transformer.h.{i}.ln_1.{p}"),
        Rule("stack.blocks.{i}.ff.up.{p}", "transformer.h.{i}.mlp.c_fc.{p}"),
        Rule("stack.blocks.{i}.ff.down.{p}", "transformer.h.{i}.mlp.c_proj.{p}"),
        Rule("stack.blocks.{i}.ff_norm.{p}", "transformer.h.{i}.ln_2.{p}"),
        Rule("stack.norm.{p}", "transformer.ln_f.{p}"),
        Copy("lm_head.weight", "transformer.wte.weight"),
        Ignored("transformer.h.{i}.attn.bias"),
    )
)
_COMPILED = "_orig_mod."  # what torch.compile puts in front of every name


def is_nanogpt(content: dict[str, Any]) -> bool:
    """Whether a file of torch holds what nanoGPT saves."""
    return isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)


def read(content: dict[str, Any], path: Path) -> CausalLM:
    """The model of nanoGPT's checkpoint, in fp32 and eval mode.

    Raises:
        InputError: Its settings or its weights are not those of nanoGPT.
    """
    said: dict[str, Any] = content["model_args"]
    try:
        width = said["n_embd"]
        config = CausalLMConfig(
            d_model=width,
            n_layers=said["n_layer"],
            n_heads=said["n_head"],
            d_ff=4 * width,
            activation="gelu",  # nanoGPT takes the exact one
            bias=said["bias"],
            dropout=said["dropout"],
            attn_dropout=said["dropout"],
            vocab_size=said["vocab_size"],
            max_len=said["block_size"],
        )
    except KeyError as error:
        raise InputError(f"{path}: model_args has no {error.args[0]}") from error
    model = CausalLM(config)
    theirs: dict[str, Tensor] = {
        name.removeprefix(_COMPILED): x for name, x in content["model"].items()
    }
    ours, _ = _KEYS.read(theirs, model.state_dict(), str(path))
    with torch.no_grad():
        model.load_state_dict({name: x.float() for name, x in ours.items()})
    return model.eval()
