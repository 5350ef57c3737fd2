"""Recurrent language models and encoder-decoders, with and without attention."""
