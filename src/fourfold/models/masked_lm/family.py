"""Family of masked language models and classifiers on their encoders: BERT, RoBERTa, ModernBERT."""

from fourfold.families import BASE, LARGE, Family, with_configs

ROBERTA = {
    "vocab_size": 50265,
    "max_len": 514,  # 512 positions; the released weights count them from 2
    "n_segments": 1,
    "norm_eps": 1e-5,
}
# Warner et al. 2024, Table 4.
MODERNBERT = {
    "feed_forward": "glu",
    "norm_placement": "pre",
    "norm_eps": 1e-5,
    "bias": False,
    "embed_norm": True,
    "positions": "none",
    "rope_theta": 160000.0,
    "rope_local_theta": 10000.0,
    "window": 65,  # 64 tokens on each side
    "window_pattern": "LSS",
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": 50368,
    "max_len": 8192,
    "n_segments": 0,
}
CLASSIFIERS = ("SequenceClassifier", "TokenClassifier", "SpanExtractor")

FAMILY = Family(
    name="masked_lm",
    models=with_configs(
        __package__, {"MaskedLM": "model", **dict.fromkeys(CLASSIFIERS, "classifiers")}
    ),
    tasks={
        "MaskedLanguageModeling": f"{__package__}.task",
        "SequenceClassification": f"{__package__}.sequence_classification_task",
        "TokenClassification": f"{__package__}.token_classification_task",
        "QuestionAnswering": f"{__package__}.question_answering_task",
    },
    sizes={
        "bert-base-uncased": ("MaskedLM", {**BASE, "next_sentence": True}),
        "bert-base-cased": ("MaskedLM", {**BASE, "vocab_size": 28996, "next_sentence": True}),
        "bert-large-uncased": ("MaskedLM", {**LARGE, "next_sentence": True}),
        "bert-large-cased": ("MaskedLM", {**LARGE, "vocab_size": 28996, "next_sentence": True}),
        "roberta-base": ("MaskedLM", {**BASE, **ROBERTA}),
        "roberta-large": ("MaskedLM", {**LARGE, **ROBERTA}),
        "distilbert-base-uncased": ("MaskedLM", {**BASE, "n_layers": 6, "n_segments": 0}),
        "modernbert-base": ("MaskedLM", {**BASE, **MODERNBERT, "n_layers": 22, "d_ff": 1152}),
        "modernbert-large": ("MaskedLM", {**LARGE, **MODERNBERT, "n_layers": 28, "d_ff": 2624}),
    },
    architectures={
        **dict.fromkeys(("bert", "roberta", "distilbert"), f"{__package__}.hub"),
        "modernbert": f"{__package__}.hub_modernbert",
    },
    token_templates={"MaskedLM": ("{bos} $A {eos}", "{bos}:0 $A:0 {eos}:0 {between}$B:1 {eos}:1")},
    graphs={"MaskedLM": "fourfold.hub.graphs:encoder_graphs"},
    views={
        **dict.fromkeys(CLASSIFIERS, "fourfold.explorer.text_views:ClassifierView"),
        "MaskedLM": "fourfold.explorer.text_views:MaskedView",
    },
)
