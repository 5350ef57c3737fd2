"""Causal language model and classifier with an LSTM (Hochreiter and Schmidhuber 1997).

The recurrent baseline of GPT-1's Table 5. Shapes: B batch, T tokens, D width of the embedding, H
units of a layer, V vocabulary, K classes.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fourfold.core.config import Init, ModelConfig
from fourfold.core.embeddings import TokenEmbedding
from fourfold.core.init import initialize
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import Mask, mask_and_positions
from fourfold.core.validation import check_fraction, check_positive, check_types
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.models.base import Model
from fourfold.models.classifiers import last_token
from fourfold.models.heads import VocabularyHead


@dataclass(frozen=True)
class RecurrentLMConfig(ModelConfig):
    """Config of an LSTM language model; the defaults are those of GPT-1's Table 5.

    Args:
        d_model: D.
        hidden_size: H.
        n_layers: Number of layers.
        dropout: Dropout probability of embeddings, between the layers and after the last one.
        vocab_size: V; None in a recipe means the size of the tokenizer.
        max_len: Longest sequence in tokens.
        tie_embeddings: Use the token embedding as output matrix.
        init: Initialization of embedding and linear layers, a row of `fourfold.core.init.INITS`.

    Raises:
        InputError: A field has a value that no model can have.
    """

    d_model: int = 768
    hidden_size: int = 2048
    n_layers: int = 1
    dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    tie_embeddings: bool = True
    init: Init = "gpt2"

    def __post_init__(self) -> None:
        check_types(self)
        check_fraction("dropout", self.dropout)
        for field in ("d_model", "hidden_size", "n_layers", "vocab_size", "max_len"):
            check_positive(field, getattr(self, field))


class LSTMStack(nn.Module):
    """LSTM in the place of a `Stack`, with a linear map back to the width of the embedding.

    The LSTM keeps torch's initialization, U(-1/sqrt(H), 1/sqrt(H)).

    Args:
        d_model: D.
        hidden_size: H.
        n_layers: Number of layers.
        dropout: Dropout probability between the layers and after the last one.
    """

    def __init__(
        self, d_model: int, hidden_size: int, n_layers: int = 1, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        between = dropout if n_layers > 1 else 0.0
        self.lstm = nn.LSTM(d_model, hidden_size, n_layers, batch_first=True, dropout=between)
        self.dropout = Dropout(dropout)
        self.down = nn.Linear(hidden_size, d_model)

    def forward(self, x: Tensor, mask: Mask = Mask(), *, cache: KVCache | None = None) -> Tensor:
        """Run the LSTM over x (B, T, D), whose padding is on the right.

        Returns:
            (B, T, D).

        Raises:
            InputError: The mask separates packed documents, or a cache is given.
        """
        if mask.documents is not None:
            raise InputError(
                "must be false for an LSTM, which cannot separate packed documents",
                option="block_cross_document_attention",
            )
        if cache is not None:
            raise InputError("must be None for an LSTM, which has no keys", option="cache")
        y, _ = self.lstm(x)  # (B, T, H)
        return self.down(self.dropout(y))


class RecurrentLM(Model):
    """Causal language model with an LSTM; padding must be on the right.

    Example:
        >>> import fourfold, torch
        >>> model = RecurrentLM(RecurrentLMConfig(vocab_size=100)).eval()
        >>> fourfold.generate(model, torch.tensor([[1, 2, 3]]), max_new=5).shape
        torch.Size([1, 8])
    """

    can_generate = True
    is_recurrent = True

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "vocab_size must be known when a model is built"
        self.config = config
        self.embed = TokenEmbedding(
            config.vocab_size,
            config.d_model,
            max_len=config.max_len,
            positions="none",
            dropout=config.dropout,
        )
        self.stack = LSTMStack(
            config.d_model, config.hidden_size, config.n_layers, dropout=config.dropout
        )
        shared = self.embed.tokens if config.tie_embeddings else None
        self.head = VocabularyHead(config.d_model, config.vocab_size, shared)
        initialize(self, config.init)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute logits (B, T, V) of the next tokens; arguments as for `hidden`."""
        return self.logits(self.hidden(ids, mask, cache, documents))

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the input of the head (B, T, D).

        Args:
            ids: Token ids (B, T) int64.
            mask: (B, T) bool, True = real token; padding must be on the right.
            cache: Must be None.
            documents: Must be None.

        Raises:
            InputError: `cache` or `documents` is given.
        """
        attn_mask, positions = mask_and_positions(ids, mask, documents, None, causal=True)
        return self.stack(self.embed(ids, positions), attn_mask, cache=cache)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (..., D) to logits (..., V)."""
        return self.head(h)


@dataclass(frozen=True)
class RecurrentClassifierConfig(RecurrentLMConfig):
    """Config of an LSTM language model with a sequence classifier.

    Args:
        n_classes: K; 1 for a number (regression); None in a recipe means the number of classes of
            the data.
        head_dropout: Dropout probability before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("n_classes", self.n_classes)
        check_fraction("head_dropout", self.head_dropout)


class RecurrentClassifier(RecurrentLM):
    """Sequence classifier on the last token of an LSTM language model."""

    config: RecurrentClassifierConfig

    def __init__(self, config: RecurrentClassifierConfig) -> None:
        super().__init__(config)
        assert config.n_classes is not None, "n_classes must be known when a model is built"
        self.dropout = Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.d_model, config.n_classes)
        initialize(self.classifier, config.init)

    def classify(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, K) of each row's last real token."""
        return self.classifier(self.dropout(last_token(h, mask).squeeze(1)))
