"""Family of masked language models and classifiers on their encoders: BERT, RoBERTa, ModernBERT."""

from fourfold.families import Family

BASE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072}
LARGE = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096}
ROBERTA = {
    "vocab_size": 50265,
    "max_len": 514,  # 512 positions; the released weights count them from 2
    "n_segments": 1,
    "norm_eps": 1e-5,
}
CLASSIFIERS = ("SequenceClassifier", "TokenClassifier", "SpanExtractor")

FAMILY = Family(
    name="masked_lm",
    models={
        **dict.fromkeys(("MaskedLM", "MaskedLMConfig"), f"{__package__}.model"),
        **{
            name + suffix: f"{__package__}.classifiers"
            for name in CLASSIFIERS
            for suffix in ("", "Config")
        },
    },
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
    },
    architectures={
        **dict.fromkeys(("bert", "roberta", "distilbert"), f"{__package__}.hub"),
        "modernbert": f"{__package__}.hub_modernbert",
    },
    views={
        **dict.fromkeys(CLASSIFIERS, "fourfold.explorer.text_views:ClassifierView"),
        "MaskedLM": "fourfold.explorer.text_views:MaskedView",
    },
)
