"""Import of nanoGPT and minGPT checkpoints as a `CausalLM`.

Each checkpoint is one file that `torch.save` wrote. A nanoGPT checkpoint contains its settings. A
minGPT checkpoint contains weights only. The shapes of the weights imply all settings except the
number of heads, which a config.json in the same directory contains.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fourfold.core.validation import check_stored
from fourfold.errors import InputError
from fourfold.hub.architecture import Json, field, get_key
from fourfold.hub.architectures.gpt import keymap
from fourfold.hub.directory import build_on_meta, tensor_shape
from fourfold.hub.keymap import KEEP, SPLIT_QKV
from fourfold.models import CausalLM, CausalLMConfig

_COMPILED_PREFIX = "_orig_mod."  # torch.compile adds it to every name
_TOKENS = "transformer.wte.weight"
_POSITIONS = "transformer.wpe.weight"

# The names of GPT-2, but torch.nn.Linear in place of Conv1D.
_KEYMAP = keymap(_TOKENS, _POSITIONS, SPLIT_QKV, KEEP)
_DROPOUT = field("dropout", "model.resid_pdrop", "model.embd_pdrop", default=0.1)
# Number of heads of each `model_type` of minGPT, whose config.json may lack the number.
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
    """Return True if the content of a file, a dict, is a checkpoint of nanoGPT."""
    return isinstance(content.get("model"), dict) and isinstance(content.get("model_args"), dict)


def is_mingpt(content: Mapping[str, Any]) -> bool:
    """Return True if the content of a file is a state dict of minGPT."""
    return _COMPILED_PREFIX + _TOKENS in content or _TOKENS in content


def read_nanogpt_model(content: Mapping[str, Any]) -> CausalLM:
    """Build the model of a nanoGPT checkpoint, in fp32 and in eval mode.

    Args:
        content: Content of the file.

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
    return _build(options, content["model"])


def read_mingpt_model(content: Mapping[str, Any], settings: Json) -> CausalLM:
    """Build the model of a minGPT state dict, in fp32 and in eval mode.

    Args:
        content: State dict by minGPT's names.
        settings: Content of the config.json beside the state dict; empty if there is none.

    Raises:
        InputError: The weights are not those of minGPT, or the number of heads is unknown.
    """
    weights = _strip_prefix(content)
    vocab_size, d_model = tensor_shape(weights, _TOKENS, 2)
    n_heads = get_key(settings, "model.n_head")
    n_heads = n_heads or _MINGPT_HEADS.get(get_key(settings, "model.model_type"))
    if not isinstance(n_heads, int):
        message = "must be in config.json, since the weights do not determine the number of heads"
        raise InputError(message, option="model.n_head or model.model_type")
    options = {
        "d_model": d_model,
        "n_layers": len({n.split(".")[2] for n in weights if n.startswith("transformer.h.")}),
        "n_heads": n_heads,
        "d_ff": tensor_shape(weights, "transformer.h.0.mlp.c_fc.weight", 2)[0],
        "activation": "gelu_tanh",
        "dropout": _DROPOUT.read(settings),
        "attn_dropout": get_key(settings, "model.attn_pdrop", 0.1),
        "vocab_size": vocab_size,
        "max_len": tensor_shape(weights, _POSITIONS, 2)[0],
        "tie_embeddings": False,
    }
    return _build(options, weights)


def _strip_prefix(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Remove the prefix that torch.compile adds to the names of a state dict."""
    return {name.removeprefix(_COMPILED_PREFIX): x for name, x in state.items()}


def _build(options: dict[str, Any], state: Mapping[str, Any]) -> CausalLM:
    """Build a model in fp32 and in eval mode.

    Args:
        options: Fields of the config of the model.
        state: State dict by nanoGPT's names.
    """
    config, tensors = CausalLMConfig(**options), _strip_prefix(state)
    check_stored(tensors)
    expected = build_on_meta(lambda: CausalLM(config), config, tensors).state_dict()
    native, _ = _KEYMAP.to_native(tensors, expected)  # compares all shapes
    model = CausalLM(config).float()
    model.load_state_dict(native)
    return model.eval()
