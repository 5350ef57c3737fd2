"""Inference commands: translate, generate, fill, classify and caption."""
