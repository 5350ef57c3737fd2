"""Decoding: sampling and beam search, written against a step function instead of a model."""

from fourfold.generation.beam import PENALTIES
from fourfold.generation.decoding import beam_search, generate

__all__ = ["PENALTIES", "beam_search", "generate"]
