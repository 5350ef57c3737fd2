"""Attention, transformer block, masks, rotary positions and key-value cache."""
