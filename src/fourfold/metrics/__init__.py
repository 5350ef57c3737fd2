"""Metrics whose values depend neither on batches and ranks nor on the order of examples.

A class is imported when it is first accessed.
"""

from fourfold import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
