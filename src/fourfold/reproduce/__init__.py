"""Reproduction of published tables, and comparison of recipes."""
