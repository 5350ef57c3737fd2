"""Causal language model and classifier with an LSTM (Hochreiter and Schmidhuber 1997).

The recurrent baseline of GPT-1's Table 5. Shapes: B batch, T tokens, D width of the embedding, H
units of a layer, V vocabulary, K classes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fourfold.core.config import Init, ModelConfig
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.models.causal_lm import CausalLM
from fourfold.models.classifiers import CausalClassifier
from fourfold.models.recurrent.cells import RecurrentCache


@dataclass(frozen=True)
class RecurrentLMConfig(ModelConfig):
    """Config of an LSTM language model; the defaults are those of GPT-1's Table 5.

    Args:
        d_model: Width D of the embedding.
        hidden_size: Number of units H of a layer.
        n_layers: Number of layers.
        dropout: Dropout probability after the embedding, between layers and after the last layer.
        vocab_size: Size V of the vocabulary. None in a config file is replaced by the size of the
            tokenizer. The constructor of the model needs a number.
        max_len: Longest sequence in tokens.
        tie_embeddings: Use the token embedding as output matrix.
        init: Initialization of embedding and linear layers, a name in `fourfold.core.init.INITS`.

    Raises:
        InputError: A field has a value outside its choices or its range.
    """

    d_model: int = 768
    hidden_size: int = 2048
    n_layers: int = 1
    dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    tie_embeddings: bool = True
    init: Init = "gpt2"
    # Fixed values of two fields of `CausalLMConfig`.
    positions: ClassVar = "none"
    embed_norm: ClassVar = False


class LSTMStack(nn.Module):
    """LSTM in the place of a `Stack`, with a linear map back to the width of the embedding.

    The LSTM keeps torch's initialization, U(-1/sqrt(H), 1/sqrt(H)).
    """

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            config.d_model,
            config.hidden_size,
            config.n_layers,
            batch_first=True,
            dropout=config.dropout if config.n_layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(config.hidden_size, config.d_model)

    def forward(
        self, x: Tensor, mask: Mask = Mask(), *, cache: RecurrentCache | None = None
    ) -> Tensor:
        """Run the LSTM over x (B, T, D), whose padding is on the right.

        Args:
            x: Embedded tokens; with a cache, only the new tokens.
            mask: Ignored, because an LSTM is causal and padding on the right follows all real
                tokens. It must not separate packed documents.
            cache: State after the earlier tokens, changed in place; None means no earlier tokens.

        Returns:
            Hidden states (B, T, D).

        Raises:
            InputError: The mask separates packed documents.
        """
        if mask.documents is not None:
            raise InputError(
                "must be false for an LSTM, which cannot separate packed documents",
                option="block_cross_document_attention",
            )
        y, state = self.lstm(x, None if cache is None else cache.state)  # (B, T, H)
        if cache is not None:
            cache.state = state
        return self.down(self.dropout(y))


class RecurrentLM(CausalLM):
    """Causal language model with an LSTM, which does not support packed documents.

    Padding must be on the right, and is not supported with a cache.

    Example:
        >>> import fourfold, torch
        >>> model = RecurrentLM(RecurrentLMConfig(vocab_size=100)).eval()
        >>> fourfold.generate(model, torch.tensor([[1, 2, 3]]), max_new=5).shape
        torch.Size([1, 8])
    """

    is_recurrent = True
    stack_class = LSTMStack

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]

    def new_cache(self) -> Any:
        """Build the state of the LSTM before its first step."""
        return RecurrentCache()


@dataclass(frozen=True)
class RecurrentClassifierConfig(RecurrentLMConfig):
    """Config of an LSTM language model with a sequence classifier.

    Args:
        n_classes: Number of classes K, or 1 to predict a number (regression). None in a config file
            is replaced by the number of classes of the data.
        head_dropout: Dropout probability before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1


class RecurrentClassifier(CausalClassifier):
    """Sequence classifier on the last token of an LSTM language model."""

    is_recurrent = True
    stack_class = LSTMStack

    def __init__(self, config: RecurrentClassifierConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]
