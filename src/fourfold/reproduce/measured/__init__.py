"""Measurements of the tier `measured` other than the timing of layers."""
