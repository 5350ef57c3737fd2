"""Causal language model and classifier with an LSTM, a GRU or an RNN.

The LSTM (Hochreiter and Schmidhuber 1997) is the recurrent baseline of GPT-1's Table 5. Shapes: B
batch, T tokens, D width of the embedding, H units of a layer, V vocabulary, K classes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fourfold.core.config import Init, ModelConfig
from fourfold.core.masks import Mask
from fourfold.core.validation import check_absent
from fourfold.models.causal_lm.classifier import CausalClassifier
from fourfold.models.causal_lm.model import CausalLM
from fourfold.models.recurrent.cells import LSTM_RANGES, Cell, RecurrentCache, RecurrentStack


@dataclass(frozen=True)
class RecurrentLMConfig(ModelConfig):
    """Config of a recurrent LM, by default that of GPT-1's Table 5 (Radford et al. 2018).

    Args:
        d_model: Width D of the embedding.
        hidden_size: Number of units H of a layer.
        n_layers: Number of layers.
        dropout: Dropout probability after the embedding, between layers and after the last layer.
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest sequence in tokens.
        tie_embeddings: Use the token embedding as output matrix.
        init: Initialization of embedding and linear layers, a name in `fourfold.layers.init.INITS`.
        cell: rnn (tanh), gru or lstm.
        forget_bias: Number that is added to the initial bias of the forget gate of an LSTM.
    """

    d_model: int = 768
    hidden_size: int = 2048
    n_layers: int = 1
    dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    tie_embeddings: bool = True
    init: Init = "gpt2"
    cell: Cell = "lstm"
    forget_bias: float = 0.0
    # Fixed values of four fields of `CausalLMConfig`.
    positions: ClassVar = "none"
    embed_norm: ClassVar = False
    score_cap: ClassVar = None
    logit_cap: ClassVar = None
    ranges: ClassVar = LSTM_RANGES


class RecurrentLayers(RecurrentStack):
    """Recurrent layers and a linear map from H units to the width D, in place of a `Stack`.

    The layers are an attribute with the name of the cell, such as `lstm`. Their weights keep
    torch's initialization, U(-1/sqrt(H), 1/sqrt(H)), apart from `forget_bias`.
    """

    def __init__(self, config: RecurrentLMConfig) -> None:
        sizes = config.d_model, config.hidden_size, config.n_layers
        options: Any = {name: getattr(config, name) for name in ("cell", "dropout", "forget_bias")}
        super().__init__(*sizes, name=config.cell, **options)
        self.down = nn.Linear(config.hidden_size, config.d_model)

    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Mask = Mask(), *, cache: RecurrentCache | None = None
    ) -> Tensor:
        """Map x (B, T, D) to hidden states (B, T, D), with padding on the right, so without a mask.

        Raises:
            InputError: The mask separates packed documents, or has a prefix.
        """
        reason = "a recurrent model, which cannot separate packed documents"
        check_absent(f"{reason} (block_cross_document_attention: true)", documents=mask.documents)
        check_absent("a recurrent model, which needs data.objective causal", prefix=mask.prefix)
        y, state = super().forward(x, None, None if cache is None else cache.state)  # (B, T, H)
        if cache is not None:
            cache.state = state  # `advance` has counted the tokens
        return self.down(self.dropout(y))


class RecurrentLM(CausalLM):
    """Recurrent causal language model, which does not support packed documents.

    Source: Hochreiter and Schmidhuber 1997 (LSTM); Radford et al. 2018, Table 5. The state takes
    the place of a key-value cache and has the same size at every position. Padding must be on the
    right, and is not supported with a cache.
    """

    is_recurrent = True
    stack_class = RecurrentLayers

    def __init__(self, config: RecurrentLMConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]

    def new_cache(self) -> Any:
        """Build an empty `RecurrentCache`, the state of the layers before their first step."""
        return RecurrentCache()


@dataclass(frozen=True)
class RecurrentClassifierConfig(RecurrentLMConfig):
    """Config of a recurrent LM with a sequence classifier (Radford et al. 2018, Table 5).

    Args:
        n_classes: Number of classes K, or 1 for regression. None takes that of the data.
        head_dropout: Dropout probability before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1


class RecurrentClassifier(RecurrentLM, CausalClassifier):
    """Sequence classifier on the last real token of a recurrent language model.

    Source: Radford et al. 2018, Table 5. A call of the model returns vocabulary logits (B, T, V).
    `classify` returns class logits (B, K).
    """
