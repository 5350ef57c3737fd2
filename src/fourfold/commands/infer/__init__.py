"""Inference commands: translate, generate, fill and classify."""
