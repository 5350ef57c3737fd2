"""Measurements of decoding for table cells that are timed on this machine."""
