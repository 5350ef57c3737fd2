"""Callbacks that Lightning lacks: checkpointing, monitoring, compilation and memory settings."""
