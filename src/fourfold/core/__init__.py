"""Attention, transformer block, embeddings, masks and key-value cache; imports torch alone."""
