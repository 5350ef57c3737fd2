"""Weights in and weights out."""
