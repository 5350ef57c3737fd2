"""Baseline models that the transformers are compared with."""
