"""Decoding: `generate` for greedy search and sampling, `beam_search` for beam search."""

from fourfold.generation.beam_search import LENGTH_PENALTIES, beam_search
from fourfold.generation.generate import generate
from fourfold.layers.generation_defaults import BeamOptions as BeamOptions
from fourfold.layers.generation_defaults import DecodingOptions, GenerationDefaults

__all__ = ["LENGTH_PENALTIES", "DecodingOptions", "GenerationDefaults", "beam_search", "generate"]
