"""Batches, batch orders, the resumable sampler and the base DataModule."""
