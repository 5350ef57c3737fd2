"""Four transformer families on one attention core, trained with PyTorch Lightning.

The names below and the subpackages are imported on first use (PEP 562), so that `import fourfold`
and `fourfold --help` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.analysis.attention_maps import attention_maps as attention_maps
    from fourfold.checkpoints.load import load as load
    from fourfold.checkpoints.save import save as save
    from fourfold.commands.infer.caption import caption as caption
    from fourfold.commands.infer.classify import classify as classify
    from fourfold.commands.infer.classify import tag as tag
    from fourfold.commands.infer.fill_mask import fill as fill
    from fourfold.commands.infer.generate import generate_text as generate_text
    from fourfold.commands.infer.translate import translate as translate
    from fourfold.edits import edit as edit
    from fourfold.edits import record as record
    from fourfold.explorer.write import look as look
    from fourfold.families import Family as Family
    from fourfold.families import register as register
    from fourfold.generation import beam_search as beam_search
    from fourfold.generation import generate as generate
    from fourfold.generation.score import TextScore as TextScore
    from fourfold.generation.score import TokenScore as TokenScore
    from fourfold.generation.score import score as score
    from fourfold.models.registry import create as create
    from fourfold.models.registry import list_models as list_models

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
