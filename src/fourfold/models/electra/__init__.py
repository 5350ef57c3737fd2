"""ELECTRA: an encoder that is trained to detect tokens which a small masked LM has replaced."""
