"""Causal language models: GPT, GPT-2, Llama, Qwen, Gemma."""
