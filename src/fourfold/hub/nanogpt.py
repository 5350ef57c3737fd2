"""Checkpoints of nanoGPT and of minGPT: one file of torch each.

nanoGPT stores its settings with the weights; of minGPT's, the shapes tell all but the heads.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.hub.architecture import said_of
from fourfold.hub.keymap import FUSED, Copy, Ignored, KeyMap, Rule
from fourfold.models import CausalLM, CausalLMConfig

_COMPILED = "_orig_mod."  # what torch.compile puts in front of every name
_TOKENS, _PLACES = "transformer.wte.weight", "transformer.wpe.weight"
_LAYERS, _WIDE = "transformer.h.", "transformer.h.0.mlp.c_fc.weight"
_DROPS = ("resid_pdrop", "embd_pdrop")


# GPT-2's names, but linear layers as torch lays them out.
_KEYS = KeyMap(
    (
        Rule("embed.tokens.weight", _TOKENS),
        Rule("embed.positions.weight", _PLACES),
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
        Rule("head.own.weight", "lm_head.weight"),  # minGPT's
        Copy("lm_head.weight", _TOKENS),  # nanoGPT's
        Ignored("transformer.h.{i}.attn.bias"),
    )
)
# minGPT's words for sizes; its config.json is written before it looks them up.
_MINGPT_HEADS = {
    "openai-gpt": 12, "gpt2": 12, "gpt2-medium": 16, "gpt2-large": 20, "gpt2-xl": 25,
    "gopher-44m": 16, "gpt-mini": 6, "gpt-micro": 4, "gpt-nano": 3,
}  # fmt: skip


def is_nanogpt(content: Mapping[str, Any]) -> bool:
    """Whether a file of torch holds what nanoGPT saves."""
    return isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)


def is_mingpt(content: Mapping[str, Any]) -> bool:
    """Whether a file of torch holds what minGPT saves: weights alone."""
    return _COMPILED + _TOKENS in content or _TOKENS in content


def read(content: Mapping[str, Any], where: str) -> CausalLM:
    """The model of nanoGPT's checkpoint, in fp32 and eval mode.

    Raises:
        InputError: Its settings or its weights are not those of nanoGPT.
    """
    said: dict[str, Any] = content["model_args"]
    try:
        config = CausalLMConfig(
            d_model=said["n_embd"],
            n_layers=said["n_layer"],
            n_heads=said["n_head"],
            d_ff=4 * said["n_embd"],
            activation="gelu",  # nanoGPT takes the exact one
            bias=said["bias"],
            dropout=said["dropout"],
            attn_dropout=said["dropout"],
            vocab_size=said["vocab_size"],
            max_len=said["block_size"],
        )
    except KeyError as error:
        raise InputError(f"{where}: model_args has no {error.args[0]}") from error
    return _filled(config, content["model"], where)


def read_mingpt(content: Mapping[str, Any], said: Mapping[str, Any], where: str) -> CausalLM:
    """The model of minGPT's weights, in fp32 and eval mode.

    Args:
        content: The weights.
        said: The config.json of minGPT's work_dir, empty if there is none beside the weights.
        where: The file, for errors.

    Raises:
        InputError: They are not minGPT's, or nothing says how many heads there are.
    """
    weights = _plain(content)
    heads = _mingpt_heads(said, where)
    shapes = [tuple(weights[n].shape) if n in weights else () for n in (_TOKENS, _PLACES, _WIDE)]
    if any(len(shape) != 2 for shape in shapes):
        raise InputError(f"{where}: one of {_TOKENS}, {_PLACES} and {_WIDE} is no matrix in it")
    (vocab_size, width), (max_len, _), (d_ff, _) = shapes
    drops = {value for key in _DROPS for value in said_of(said, f"model.{key}")}
    if len(drops) > 1:
        raise InputError(f"{where}: {' and '.join(_DROPS)} differ, but fourfold has one dropout")
    config = CausalLMConfig(
        d_model=width,
        n_layers=len({name.split(".")[2] for name in weights if name.startswith(_LAYERS)}),
        n_heads=heads,
        d_ff=d_ff,
        activation="gelu_tanh",
        dropout=next(iter(drops), 0.1),
        attn_dropout=next(iter(said_of(said, "model.attn_pdrop")), 0.1),
        vocab_size=vocab_size,
        max_len=max_len,
        tie=False,
    )
    return _filled(config, weights, where)


def _mingpt_heads(said: Mapping[str, Any], where: str) -> int:
    """What minGPT's config.json says of the heads: their number, or a word for all sizes."""
    for heads in said_of(said, "model.n_head"):
        if isinstance(heads, int):
            return heads
    for word in said_of(said, "model.model_type"):
        if word in _MINGPT_HEADS:
            return _MINGPT_HEADS[word]
    raise InputError(
        f"{where}: minGPT's weights do not show how many heads there are, and no config.json"
        " beside them says it as n_head or model_type in its section model"
    )


def _plain(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix(_COMPILED): x for name, x in state.items()}


def _filled(config: CausalLMConfig, state: Mapping[str, Any], where: str) -> CausalLM:
    """A model with the weights of a state dict."""
    model = CausalLM(config)
    ours, _ = _KEYS.read(_plain(state), model.state_dict(), where)
    with torch.no_grad():
        model.load_state_dict({name: x.float() for name, x in ours.items()})
    return model.eval()
