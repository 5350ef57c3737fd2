"""Checkpoints of nanoGPT and minGPT: one file of `torch.save` each, converted to `CausalLM`.

A nanoGPT checkpoint contains its settings. A minGPT checkpoint contains weights only: their shapes
imply all settings except the number of heads, which is part of a config.json in the same directory.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.hub.architecture import Json, get_key, has_key
from fourfold.hub.directory import common_dtype
from fourfold.hub.keymap import SPLIT_QKV, Ignored, KeyMap, Rule, Tied
from fourfold.models import CausalLM, CausalLMConfig

_COMPILED_PREFIX = "_orig_mod."  # torch.compile adds it to every name
_TOKENS = "transformer.wte.weight"
_POSITIONS = "transformer.wpe.weight"
_LAYER_PREFIX = "transformer.h."
_FF_UP = "transformer.h.0.mlp.c_fc.weight"

# The names of GPT-2, but torch.nn.Linear in place of Conv1D.
_KEYMAP = KeyMap(
    (
        Rule("embed.tokens.weight", _TOKENS),
        Rule("embed.positions.weight", _POSITIONS),
        Rule(
            tuple("stack.blocks.{i}.attn." + projection + ".{p}" for projection in "qkv"),
            "transformer.h.{i}.attn.c_attn.{p}",
            SPLIT_QKV,
        ),
        Rule("stack.blocks.{i}.attn.out.{p}", "transformer.h.{i}.attn.c_proj.{p}"),
        Rule("stack.blocks.{i}.attn_norm.{p}", "transformer.h.{i}.ln_1.{p}"),
        Rule("stack.blocks.{i}.ff.up.{p}", "transformer.h.{i}.mlp.c_fc.{p}"),
        Rule("stack.blocks.{i}.ff.down.{p}", "transformer.h.{i}.mlp.c_proj.{p}"),
        Rule("stack.blocks.{i}.ff_norm.{p}", "transformer.h.{i}.ln_2.{p}"),
        Rule("stack.norm.{p}", "transformer.ln_f.{p}"),
        Rule("head.own.weight", "lm_head.weight"),  # minGPT: embeddings are not tied
        Tied("lm_head.weight", _TOKENS),  # nanoGPT: embeddings are tied
        Ignored("transformer.h.{i}.attn.bias"),
    )
)
# minGPT's `model_type` and its number of heads; config.json is written before minGPT looks it up.
_MINGPT_HEADS = {
    "openai-gpt": 12,
    "gpt2": 12,
    "gpt2-medium": 16,
    "gpt2-large": 20,
    "gpt2-xl": 25,
    "gopher-44m": 16,
    "gpt-mini": 6,
    "gpt-micro": 4,
    "gpt-nano": 3,
}


def is_nanogpt(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a file is a checkpoint of nanoGPT."""
    return isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)


def is_mingpt(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a file is a state dict of minGPT."""
    return _COMPILED_PREFIX + _TOKENS in content or _TOKENS in content


def read_nanogpt_model(
    content: Mapping[str, Any], file: str, dtype: torch.dtype | None = torch.float32
) -> CausalLM:
    """Build the model of a nanoGPT checkpoint, in eval mode.

    Args:
        content: Content of the file.
        file: Path of the file, for error messages.
        dtype: Data type of the parameters; None for that of the stored tensors.

    Raises:
        InputError: Settings or weights are not those of nanoGPT.
    """
    settings: dict[str, Any] = content["model_args"]
    try:
        config = CausalLMConfig(
            d_model=settings["n_embd"],
            n_layers=settings["n_layer"],
            n_heads=settings["n_head"],
            d_ff=4 * settings["n_embd"],
            activation="gelu",
            bias=settings["bias"],
            dropout=settings["dropout"],
            attn_dropout=settings["dropout"],
            vocab_size=settings["vocab_size"],
            max_len=settings["block_size"],
        )
    except KeyError as error:
        raise InputError(f"has no entry {error.args[0]}", option="model_args", file=file) from error
    except InputError as error:
        raise error.in_file(file) from error
    return _build(config, content["model"], file, dtype)


def read_mingpt_model(
    content: Mapping[str, Any], settings: Json, file: str, dtype: torch.dtype | None = torch.float32
) -> CausalLM:
    """Build the model of a minGPT state dict, in eval mode.

    Args:
        content: State dict.
        settings: Content of the config.json of minGPT's `work_dir`, empty if there is none.
        file: Path of the state dict, for error messages.
        dtype: Data type of the parameters; None for that of the stored tensors.

    Raises:
        InputError: The weights are not those of minGPT, or the number of heads is unknown.
    """
    weights = _strip_prefix(content)
    n_heads = _mingpt_heads(settings, file)
    shapes = {}
    for name in (_TOKENS, _POSITIONS, _FF_UP):
        if name not in weights or weights[name].ndim != 2:
            raise InputError(f"no matrix {name}", file=file)
        shapes[name] = tuple(weights[name].shape)
    vocab_size, d_model = shapes[_TOKENS]
    keys = ("model.resid_pdrop", "model.embd_pdrop")
    dropouts = {get_key(settings, key) for key in keys if has_key(settings, key)}
    if len(dropouts) > 1:
        raise InputError(
            "and embd_pdrop must be equal, since fourfold has one dropout for both",
            option="resid_pdrop",
            file=file,
        )
    try:
        config = CausalLMConfig(
            d_model=d_model,
            n_layers=len({n.split(".")[2] for n in weights if n.startswith(_LAYER_PREFIX)}),
            n_heads=n_heads,
            d_ff=shapes[_FF_UP][0],
            activation="gelu_tanh",
            dropout=next(iter(dropouts), 0.1),
            attn_dropout=get_key(settings, "model.attn_pdrop", 0.1),
            vocab_size=vocab_size,
            max_len=shapes[_POSITIONS][0],
            tie_embeddings=False,
        )
    except InputError as error:
        raise error.in_file(file) from error
    return _build(config, weights, file, dtype)


def _mingpt_heads(settings: Json, file: str) -> int:
    n_heads = get_key(settings, "model.n_head")
    if isinstance(n_heads, int):
        return n_heads
    model_type = get_key(settings, "model.model_type")
    if model_type in _MINGPT_HEADS:
        return _MINGPT_HEADS[model_type]
    raise InputError(
        "the weights of minGPT do not determine the number of heads; a config.json in the same"
        ' directory must give it as "n_head" or "model_type" in its section "model"',
        file=file,
    )


def _strip_prefix(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix(_COMPILED_PREFIX): x for name, x in state.items()}


def _build(
    config: CausalLMConfig, state: Mapping[str, Any], file: str, dtype: torch.dtype | None
) -> CausalLM:
    tensors = _strip_prefix(state)
    model = CausalLM(config).to(common_dtype(tensors) if dtype is None else dtype)
    native, _ = _KEYMAP.to_native(tensors, model.state_dict(), file)
    model.load_state_dict(native)
    return model.eval()
