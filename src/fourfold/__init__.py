"""Four transformer families on one attention core, trained with PyTorch Lightning.

The names below and the subpackages are imported on first use (PEP 562), so that `import fourfold`
and `fourfold --help` do not import torch.
"""

from importlib import import_module

__version__ = "0.3.0"

_MODULES = {
    "Family": "fourfold.families",
    "TextScore": "fourfold.generation.score",
    "TokenScore": "fourfold.generation.score",
    "attention_maps": "fourfold.analysis.attention_maps",
    "beam_search": "fourfold.generation",
    "caption": "fourfold.commands.infer.caption",
    "classify": "fourfold.commands.infer.classify",
    "create": "fourfold.models.registry",
    "edit": "fourfold.edits",
    "fill": "fourfold.commands.infer.fill_mask",
    "generate": "fourfold.generation",
    "generate_text": "fourfold.commands.infer.generate",
    "list_models": "fourfold.models.registry",
    "load": "fourfold.checkpoints.load",
    "look": "fourfold.explorer.write",
    "record": "fourfold.edits",
    "register": "fourfold.families",
    "save": "fourfold.checkpoints.save",
    "score": "fourfold.generation.score",
    "tag": "fourfold.commands.infer.classify",
    "translate": "fourfold.commands.infer.translate",
}
_SUBPACKAGES = ("callbacks", "data", "edits", "generation", "loggers", "metrics", "models", "tasks")
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return import_module(f"fourfold.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fourfold' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_SUBPACKAGES))
