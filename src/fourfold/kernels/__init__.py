"""CPU kernels: attention and decoding, cross-entropy of large vocabularies, dropout."""
