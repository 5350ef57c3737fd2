"""Family of causal language models: GPT, GPT-2, Llama, Mistral, Qwen, OLMo and Gemma."""

from fourfold.families import Family

BASE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072}
GPT2 = {"dropout": 0.0, "attn_dropout": 0.0}

FAMILY = Family(
    name="causal_lm",
    models={
        **dict.fromkeys(("CausalLM", "CausalLMConfig"), f"{__package__}.model"),
        **dict.fromkeys(
            ("CausalClassifier", "CausalClassifierConfig"), "fourfold.models.masked_lm.classifiers"
        ),
    },
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
        "gpt2-medium": (
            "CausalLM",
            {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096, **GPT2},
        ),
        "gpt2-large": (
            "CausalLM",
            {"d_model": 1280, "n_layers": 36, "n_heads": 20, "d_ff": 5120, **GPT2},
        ),
        "gpt2-xl": (
            "CausalLM",
            {"d_model": 1600, "n_layers": 48, "n_heads": 25, "d_ff": 6400, **GPT2},
        ),
    },
    architectures={
        **dict.fromkeys(("gpt2", "openai-gpt"), f"{__package__}.hub"),
        **dict.fromkeys(
            ("llama", "mistral", "qwen2", "qwen3", "olmo2"), f"{__package__}.hub_llama"
        ),
        **dict.fromkeys(("gemma2", "gemma3_text"), f"{__package__}.hub_gemma"),
    },
    views={
        "CausalClassifier": "fourfold.explorer.text_views:ClassifierView",
        "CausalLM": "fourfold.explorer.text_views:CausalView",
    },
)
