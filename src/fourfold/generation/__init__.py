"""Decoding: `generate` for greedy search and sampling, `beam_search` for beam search."""

from fourfold.generation.beam_search import LENGTH_PENALTIES, beam_search
from fourfold.generation.defaults import GenerationDefaults
from fourfold.generation.generate import generate

__all__ = ["LENGTH_PENALTIES", "GenerationDefaults", "beam_search", "generate"]
