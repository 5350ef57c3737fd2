"""Vision Transformers: ViT, DeiT, DINOv2, DINOv3, masked autoencoders."""
