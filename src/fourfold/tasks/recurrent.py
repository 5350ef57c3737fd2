"""The tasks of a causal LM with an LSTM in the place of its blocks (GPT-1, Table 5)."""

from typing import Any

from fourfold.callbacks.media import Media
from fourfold.data.batch import CausalBatch, SequenceBatch
from fourfold.models import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.tasks.causal_classification import CausalSequenceClassification
from fourfold.tasks.causal_lm import CausalLanguageModeling


class RecurrentLanguageModeling(CausalLanguageModeling):
    """Learns to predict the next token as `CausalLanguageModeling` does.

    Args:
        config: The model.
        options: As `CausalLanguageModeling`.
    """

    model_class = RecurrentLM
    config_class = RecurrentLMConfig

    def __init__(
        self,
        config: RecurrentLMConfig = RecurrentLMConfig(),  # noqa: B008  (frozen)
        **options: Any,
    ) -> None:
        super().__init__(config, **options)

    def show(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Nothing: it neither attends nor writes with a cache."""
        return {}


class RecurrentSequenceClassification(CausalSequenceClassification):
    """Learns a class, or a number, as `CausalSequenceClassification` does.

    Args:
        config: The model.
        options: As `CausalSequenceClassification`.
    """

    model_class = RecurrentClassifier
    config_class = RecurrentClassifierConfig

    def __init__(
        self,
        config: RecurrentClassifierConfig = RecurrentClassifierConfig(),  # noqa: B008  (frozen)
        **options: Any,
    ) -> None:
        super().__init__(config, **options)

    def show(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """The first texts with their classes or numbers; there is no attention."""
        return {"samples": super().show(batch, split)["samples"]}
