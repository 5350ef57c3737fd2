"""Masked language models, and classifiers on their encoders: BERT, RoBERTa, ModernBERT."""
