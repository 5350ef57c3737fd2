"""LoRA, weight transfer between models and layer groups."""
