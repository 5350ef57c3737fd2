"""Import and export of models in the formats of transformers, timm and nanoGPT."""
