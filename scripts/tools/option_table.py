"""Prints the table of README.md with the options of the core and published models that use them.

    python scripts/tools/option_table.py

The models are those of `fourfold.list_models()`, the first one of each family.
"""

from collections.abc import Callable
from typing import Any

from fourfold.families import families
from fourfold.models.registry import create_config

# Title of an option, the field with an example of its value, and the test for it.
OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "rotary positions": ("rope_theta: 10000", lambda c: c.rope_theta is not None),
    "learned positions": ("positions: learned", lambda c: str(c.positions).startswith("learned")),
    "sinusoidal positions": ("positions: sinusoidal", lambda c: str(c.positions).startswith("sin")),
    "grouped key/value heads": ("n_kv_heads: 2", lambda c: c.n_kv_heads is not None),
    "RMSNorm": ("norm: rms", lambda c: c.norm == "rms"),
    "norm before a sub-layer": ("norm_placement: pre", lambda c: c.norm_placement == "pre"),
    "norm after the residual": ("norm_placement: post", lambda c: c.norm_placement == "post"),
    "norm of queries and keys": ("qk_norm: head", lambda c: c.qk_norm != "none"),
    "gated feed-forward": ("feed_forward: glu", lambda c: c.feed_forward == "glu"),
    "window": ("window: 64", lambda c: c.window is not None),
    "layer scale": ("layer_scale: 1.0e-5", lambda c: c.layer_scale is not None),
}


def has(config: Any, test: Callable[[Any], bool]) -> bool:
    """Return True if a config uses an option; a ResNet has none."""
    try:
        return test(config)
    except AttributeError:
        return False


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| option | example in `model.config` | published models |", "| --- | --- | --- |"]
    for title, (field, test) in OPTIONS.items():
        names = []
        for family in families():
            used = [name for name in family.sizes if has(create_config(name), test)]
            names += [f"`{used[0]}`"] if used else []
        lines.append(f"| {title} | `{field}` | {', '.join(names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
