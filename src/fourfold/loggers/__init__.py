"""Loggers for metrics.csv and Weights & Biases, and the media that they log."""
