"""Family of recurrent models with attention: translation, captions, documents, language."""

from fourfold.families import Family, with_configs

FAMILY = Family(
    name="recurrent",
    models=with_configs(
        __package__,
        {
            "RecurrentCaptioner": "captioner",
            "RecurrentEncoderDecoder": "encoder_decoder",
            "HierarchicalClassifier": "hierarchical",
            **dict.fromkeys(("RecurrentClassifier", "RecurrentLM"), "language_model"),
        },
    ),
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
