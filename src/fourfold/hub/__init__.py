"""Import and export of models in the formats of transformers, timm, nanoGPT and llama2.c."""
