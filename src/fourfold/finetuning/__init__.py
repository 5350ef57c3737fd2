"""LoRA, layer groups, and weight transfer between models."""
