"""Family of recurrent models with attention: translation, captions, documents, language."""

from fourfold.families import Family

FAMILY = Family(
    name="recurrent",
    models={
        name + suffix: f"{__package__}.{module}"
        for name, module in {
            "RecurrentCaptioner": "captioner",
            "RecurrentEncoderDecoder": "encoder_decoder",
            "HierarchicalClassifier": "hierarchical",
            "RecurrentClassifier": "language_model",
            "RecurrentLM": "language_model",
        }.items()
        for suffix in ("", "Config")
    },
    tasks=dict.fromkeys(
        (
            "DocumentClassification",
            "RecurrentCaptioning",
            "RecurrentLanguageModeling",
            "RecurrentSequenceClassification",
            "RecurrentTranslation",
        ),
        f"{__package__}.task",
    ),
    token_templates={"HierarchicalClassifier": ("$A", None)},
    views={"HierarchicalClassifier": "fourfold.explorer.text_views:DocumentView"},
)
