"""LoRA, layer-wise learning rates, and weight transfer between models."""
