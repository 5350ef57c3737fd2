"""Tokenizers: loading, training and application, without Lightning and without DataModules."""
