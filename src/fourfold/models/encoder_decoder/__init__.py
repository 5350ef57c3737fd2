"""Encoder-decoders: the Transformer of Vaswani et al. 2017, Marian, BART, T5."""
