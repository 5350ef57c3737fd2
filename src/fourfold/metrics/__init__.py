"""Metrics whose values depend neither on batches and ranks nor on the order of examples.

A class is imported when it is first accessed.
"""

from importlib import import_module

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
