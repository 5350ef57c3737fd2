"""Callbacks that save checkpoints, resume exactly, average weights and handle preemption."""
