"""Attention maps, FLOPs and memory of a model."""
