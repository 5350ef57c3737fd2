"""Data: batches, tokenizers, sources and DataModules."""
