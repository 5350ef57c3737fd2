"""Base class of the tasks, with loss normalization, fine-tuning, FSDP2 and step counts."""
