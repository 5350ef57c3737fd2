"""Metrics whose values depend neither on batches and ranks nor on the order of examples.

A class is imported when it is first accessed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.metrics.base import Mean as Mean
    from fourfold.metrics.base import lower_is_better as lower_is_better
    from fourfold.metrics.caption_bleu import CaptionScores as CaptionScores
    from fourfold.metrics.classification import ClassificationScores as ClassificationScores
    from fourfold.metrics.classification import MultiLabelScores as MultiLabelScores
    from fourfold.metrics.classification import RegressionScores as RegressionScores
    from fourfold.metrics.entities import EntityScores as EntityScores
    from fourfold.metrics.perplexity import Perplexity as Perplexity
    from fourfold.metrics.retrieval import RetrievalScores as RetrievalScores
    from fourfold.metrics.squad import Answer as Answer
    from fourfold.metrics.squad import SquadScores as SquadScores
    from fourfold.metrics.translation import TranslationScores as TranslationScores

_MODULES = {
    "Answer": "squad",
    "CaptionScores": "caption_bleu",
    "ClassificationScores": "classification",
    "EntityScores": "entities",
    "Mean": "base",
    "MultiLabelScores": "classification",
    "Perplexity": "perplexity",
    "RegressionScores": "classification",
    "RetrievalScores": "retrieval",
    "SquadScores": "squad",
    "TranslationScores": "translation",
    "lower_is_better": "base",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'fourfold.metrics' has no attribute {name!r}")
    return getattr(import_module(f"fourfold.metrics.{_MODULES[name]}"), name)
