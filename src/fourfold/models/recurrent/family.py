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
    tasks={
        "RecurrentCaptioning": "fourfold.models.encoder_decoder.captioning_task",
        "RecurrentTranslation": "fourfold.models.encoder_decoder.task",
        "DocumentClassification": "fourfold.models.masked_lm.sequence_classification_task",
        **dict.fromkeys(
            ("RecurrentLanguageModeling", "RecurrentSequenceClassification"),
            "fourfold.models.baselines.task",
        ),
    },
    views={"HierarchicalClassifier": "fourfold.explorer.text_views:DocumentView"},
)
