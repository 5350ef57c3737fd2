"""Readers of raw text files, tables, annotated corpora and built-in data."""
