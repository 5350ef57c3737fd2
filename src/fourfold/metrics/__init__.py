"""Metrics that torchmetrics lacks or that must not depend on how the data were cut."""

from fourfold.metrics.answers import Answer, AnswerScores
from fourfold.metrics.classes import ClassScores, NumberScores
from fourfold.metrics.corpus import CorpusScores
from fourfold.metrics.direction import less_is_better
from fourfold.metrics.perplexity import Perplexity
from fourfold.metrics.retrieval import Retrieval
from fourfold.metrics.sums import Mean
from fourfold.metrics.tags import TagScores

__all__ = [
    "Answer",
    "AnswerScores",
    "ClassScores",
    "CorpusScores",
    "Mean",
    "NumberScores",
    "Perplexity",
    "Retrieval",
    "TagScores",
    "less_is_better",
]
