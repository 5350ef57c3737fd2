"""Kernels: attention, decoding and dropout on a CPU; cross-entropy of large vocabularies."""
