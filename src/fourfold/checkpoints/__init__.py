"""Checkpoint files, and models loaded from them, without Lightning."""
