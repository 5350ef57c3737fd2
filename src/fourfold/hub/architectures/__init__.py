"""Conversion tables, one module for each architecture of transformers."""
