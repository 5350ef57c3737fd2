"""Family of causal language models: GPT, GPT-2, Llama, Mistral, Qwen, OLMo and Gemma."""

from typing import Any

from fourfold.families import BASE, Family, with_configs

GPT2 = {"dropout": 0.0, "attn_dropout": 0.0}
# Grattafiori et al. 2024, Table 3, and the configs of Llama 3.1 and 3.2 (README of meta-llama).
GATED = {
    "activation": "silu",
    "feed_forward": "glu",
    "norm": "rms",
    "bias": False,
    "positions": "none",
    "dropout": 0.0,
    "attn_dropout": 0.0,
}
LLAMA_SCALING = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA31 = {
    **GATED,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "max_len": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {**LLAMA_SCALING, "factor": 8.0},
}
LLAMA32 = {**LLAMA31, "rope_scaling": {**LLAMA_SCALING, "factor": 32.0}}
# Yang et al. 2025, "Qwen3 Technical Report", Table 1.
QWEN3 = {
    **GATED,
    "n_kv_heads": 8,
    "d_head": 128,
    "norm_eps": 1e-6,
    "qk_norm": "head",
    "vocab_size": 151936,
    "max_len": 40960,
    "rope_theta": 1e6,
}


def _causal(d_model: int, n_layers: int, n_heads: int, d_ff: int, **fields: Any) -> tuple[str, Any]:
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    return "CausalLM", {**sizes, **fields}


FAMILY = Family(
    name="causal_lm",
    models=with_configs(__package__, {"CausalLM": "model", "CausalClassifier": "classifier"}),
    tasks={
        "CausalLanguageModeling": f"{__package__}.task",
        "CausalSequenceClassification": f"{__package__}.sequence_classification_task",
    },
    sizes={
        "openai-gpt": (
            "CausalLM",
            {**BASE, "norm_placement": "post", "vocab_size": 40478, "max_len": 512, "init": "gpt"},
        ),
        "gpt2": ("CausalLM", {**BASE, **GPT2}),
        "gpt2-medium": _causal(1024, 24, 16, 4096, **GPT2),
        "gpt2-large": _causal(1280, 36, 20, 5120, **GPT2),
        "gpt2-xl": _causal(1600, 48, 25, 6400, **GPT2),
        "llama-3.2-1b": _causal(2048, 16, 32, 8192, **LLAMA32),
        "llama-3.2-3b": _causal(3072, 28, 24, 8192, **LLAMA32),
        "llama-3.1-8b": _causal(4096, 32, 32, 14336, **LLAMA31, tie_embeddings=False),
        "qwen3-0.6b": _causal(1024, 28, 16, 3072, **QWEN3),
        "qwen3-1.7b": _causal(2048, 28, 16, 6144, **QWEN3),
        "qwen3-8b": _causal(4096, 36, 32, 12288, **QWEN3, tie_embeddings=False),
    },
    architectures={
        **dict.fromkeys(("gpt2", "openai-gpt"), f"{__package__}.hub"),
        **dict.fromkeys(
            ("llama", "mistral", "qwen2", "qwen3", "olmo2"), f"{__package__}.hub_llama"
        ),
        **dict.fromkeys(("gemma2", "gemma3_text"), f"{__package__}.hub_gemma"),
    },
    formats=(f"{__package__}.hub_nanogpt", f"{__package__}.hub_llama2c"),
    token_templates={"CausalLM": ("$A", None)},
    graphs={
        "CausalClassifier": "fourfold.hub.graphs:encoder_graphs",
        "CausalLM": "fourfold.hub.graphs:causal_graphs",
    },
    views={
        "CausalClassifier": "fourfold.explorer.text_views:ClassifierView",
        "CausalLM": "fourfold.explorer.text_views:CausalView",
    },
)
