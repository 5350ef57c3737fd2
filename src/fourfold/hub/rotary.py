"""Rotary positions and windows of layers in config.json, for all architectures that have them.

Version 4 of transformers stores rotary positions in `rope_theta` and `rope_scaling`, and version 5
in `rope_parameters`. Both are read and written.
"""

import math
from typing import Any

from fourfold.core.config import LENGTH, ROPE_SCALING, TransformerConfig
from fourfold.core.validation import check_type
from fourfold.errors import InputError
from fourfold.hub.architecture import Json

LAYER_TYPES = {"S": "sliding_attention", "L": "full_attention"}


def read_rope(config: Json, parameters: Any, default_theta: float) -> dict[str, Any]:
    """Return `rope_theta` and `rope_scaling` of the native config.

    Args:
        config: Content of config.json.
        parameters: `rope_parameters`, or None in a file of version 4 of transformers.
        default_theta: Base of the wavelengths if no key gives it.

    Raises:
        InputError: The rotary positions are of a kind that fourfold does not support.
    """
    scaling = config.get("rope_scaling")

    def read(key: str, default: Any = None) -> Any:
        # As in transformers, the first of two dictionaries has precedence, even if it lacks a key.
        found = [source.get(key) for source in (scaling, parameters) if source]
        return found[0] if found and found[0] is not None else default

    theta = read("rope_theta", config.get("rope_theta", default_theta))
    kind = str(read("rope_type", read("type", "default")))
    part = read("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if part != 1.0:
        message = f"must be 1, since the architecture rotates all channels, got {str(part)[:80]}"
        raise InputError(message, option="partial_rotary_factor")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind not in ROPE_SCALING:
        message = f"must be default, {', '.join(ROPE_SCALING)}, got {kind[:80]}"
        raise InputError(f"{message}; nearest: yarn", option="rope_type")
    values = {key: read(key) for keys in ROPE_SCALING[kind] for key in keys}
    if values.get(LENGTH, 0) is None:
        values[LENGTH] = config.get("max_position_embeddings")
    if kind == "yarn":
        scales = {key: read(key) for key in ("mscale", "mscale_all_dim")}
        if values["attention_factor"] is None:
            values["attention_factor"] = _attention_factor(values["factor"], scales)
    given = {key: value for key, value in values.items() if value is not None}
    return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, **given}}


def _attention_factor(factor: Any, scales: dict[str, Any]) -> float | None:
    """Return the `attention_factor` of yarn that `mscale` and `mscale_all_dim` imply.

    As in transformers, the two keys have an effect only together.
    """
    if not all(scales.values()):
        return None
    check_type("factor", factor, float)
    growth = 0.1 * math.log(max(factor, 1.0))
    factors = [scale * growth + 1.0 for scale in scales.values()]
    return factors[0] / factors[1]


def read_two_ropes(
    config: Json, window: int | None, keys: tuple[str, str], thetas: tuple[float, float]
) -> dict[str, Any]:
    """Return the rotary positions of a model whose layers with a window have a base of their own.

    Args:
        config: Content of config.json.
        window: Window of the native config; None if all layers have full attention.
        keys: Keys of the base in version 4 of transformers, of layers with full attention and of
            layers with a window.
        thetas: Bases if no key gives them, in the same order.
    """
    parameters = config.get("rope_parameters")
    full, local = ((parameters or {}).get(kind) for kind in ("full_attention", "sliding_attention"))
    rope = read_rope({**config, "rope_theta": config.get(keys[0], thetas[0])}, full, thetas[0])
    local = read_rope({"rope_theta": config.get(keys[1], thetas[1])}, local, thetas[1])
    if window is None:
        return {**rope, "rope_local_theta": None}
    if local["rope_scaling"] is not None:
        message = "must be default, since only layers with full attention have scaled positions"
        raise InputError(message, option="rope_parameters.sliding_attention.rope_type")
    return {**rope, "rope_local_theta": local["rope_theta"]}


def write_two_ropes(config: TransformerConfig) -> dict[str, Any]:
    """Return `rope_parameters` of a model whose layers with a window have a base of their own."""
    full = local = write_rope(config)["rope_parameters"]
    if config.rope_local_theta is not None:
        local = {"rope_theta": config.rope_local_theta, "rope_type": "default"}
    return {"full_attention": full, "sliding_attention": local}


def write_rope(config: TransformerConfig) -> dict[str, Any]:
    """Return the entries of config.json for rotary positions that all layers share."""
    theta, scaling = config.rope_theta, config.rope_scaling
    parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    return {"rope_parameters": parameters, "rope_theta": theta, "rope_scaling": scaling}


def _shortest_period(letters: str) -> str:
    """Return the shortest pattern whose repetition begins with `letters`."""
    n_letters = len(letters)
    periods = (letters[:n] for n in range(1, n_letters + 1))
    return next(x for x in periods if (x * n_letters)[:n_letters] == letters)


def read_windows(config: Json, letters: str, window: Any) -> dict[str, Any]:
    """Return `window` and `window_pattern` of the native config.

    Args:
        config: Content of config.json, whose `layer_types` have precedence.
        letters: S (with a window) or L (full attention) for each layer, if `layer_types` is absent.
        window: Size of the window, or None.

    Raises:
        InputError: `layer_types` does not name a supported type for each layer.
    """
    types = config.get("layer_types")
    if types is not None:
        known = {value: key for key, value in LAYER_TYPES.items()}
        if not isinstance(types, list) or len(types) != len(letters) or not {*types} <= {*known}:
            message = f"must name one of {', '.join(known)} for each layer, got {str(types)[:80]}"
            raise InputError(message, option="layer_types")
        letters = "".join(known[value] for value in types)
    pattern = _shortest_period(letters) if letters else "L"
    if window is None or pattern == "L":
        return {"window": None, "window_pattern": None}
    return {"window": window, "window_pattern": None if pattern == "S" else pattern}


def layer_types(config: TransformerConfig) -> list[str]:
    """Return `layer_types` of config.json."""
    return [LAYER_TYPES["L" if window is None else "S"] for window in config.windows()]


def count_layers(config: Json, default: int) -> int:
    """Return the number of layers in config.json."""
    n_layers = config.get("num_hidden_layers", default)
    return min(int(n_layers), 1 << 16)  # a larger number is rejected with the native config
