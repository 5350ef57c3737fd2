"""Embeddings of tokens and patches, and tables of position vectors."""
