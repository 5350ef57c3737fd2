# `lazy_names` of fourfold imports these names when they are first accessed.

from collections.abc import Callable

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

__version__: str
__all__: list[str]

def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object]]: ...
