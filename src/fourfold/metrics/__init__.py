"""Metrics whose values do not depend on the batches, the order of examples or the ranks."""

from fourfold.metrics.base import Mean, lower_is_better
from fourfold.metrics.classification import ClassificationScores, RegressionScores
from fourfold.metrics.entities import EntityScores
from fourfold.metrics.perplexity import Perplexity
from fourfold.metrics.retrieval import RetrievalScores
from fourfold.metrics.squad import Answer, SquadScores
from fourfold.metrics.translation import TranslationScores

__all__ = [
    "Answer",
    "ClassificationScores",
    "EntityScores",
    "Mean",
    "Perplexity",
    "RegressionScores",
    "RetrievalScores",
    "SquadScores",
    "TranslationScores",
    "lower_is_better",
]
