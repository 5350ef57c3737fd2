"""Callbacks that log progress, throughput, samples, predictions and failing batches."""
