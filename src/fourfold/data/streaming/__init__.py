"""Streaming of tokenized text in chunks from an object store or a folder."""
