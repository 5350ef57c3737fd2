"""Losses. Every one is a sum over valid targets divided by a normaliser that may be global."""

from fourfold.losses.classes import classification_loss
from fourfold.losses.vocabulary import (
    IGNORED,
    SMOOTHINGS,
    linear_cross_entropy,
    smoothing_weights,
    token_scores,
)

__all__ = [
    "IGNORED",
    "SMOOTHINGS",
    "classification_loss",
    "linear_cross_entropy",
    "smoothing_weights",
    "token_scores",
]
