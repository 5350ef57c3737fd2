"""Reproduction of published tables, and comparison of published hyperparameters."""
