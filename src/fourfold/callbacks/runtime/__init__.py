"""Callbacks that configure compilation, memory allocation and distributed evaluation."""
