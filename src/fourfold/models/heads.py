"""What stands on top of a stack: the vocabulary, and small classifiers.

Shapes: B batch, T tokens, D model width, V vocabulary, K classes.
"""

from torch import Tensor, nn

from fourfold.core.config import TransformerConfig
from fourfold.core.stack import ACTIVATIONS, make_norm
from fourfold.kernels.dropout import Dropout
from fourfold.kernels.linear import linear


class VocabularyHead(nn.Module):
    """Hidden states to one logit a word, against the token embedding or a matrix of its own.

    It hands out its parts through `output`, so that a loss need never hold all logits.

    Args:
        config: Width, activation and norm.
        vocab_size: V.
        embedding: The token embedding to share, or None for an own matrix.
        bias: One free number a word (BERT).
        transform: A dense layer, activation and norm first (BERT's masked-LM head).
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        embedding: nn.Embedding | None,
        *,
        bias: bool = False,
        transform: bool = False,
    ) -> None:
        super().__init__()
        self.own = None if embedding else nn.Linear(config.d_model, vocab_size, bias=False)
        # In a list: shared, not registered, so that the state dict holds the matrix once.
        self._shared = [embedding]
        self.bias = nn.Parameter(self.weight.new_zeros(vocab_size)) if bias else None
        self.transform = nn.Linear(config.d_model, config.d_model) if transform else None
        self.norm = make_norm(config) if transform else None
        self.activation = ACTIVATIONS[config.activation]
        self.scale = 1.0  # on hidden states; T5's is another

    @property
    def weight(self) -> Tensor:
        """(V, D), the output matrix."""
        if self.own is not None:
            return self.own.weight
        assert self._shared[0] is not None
        return self._shared[0].weight

    def output(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h (..., D) to h', weight (V, D), bias (V,) or None; logits are h' weight^T + bias."""
        if self.transform is not None and self.norm is not None:
            y = self.activation(self.transform(h))
            h = self.norm(y.to(h.dtype))  # in fp32 under autocast, on every device
        if self.scale != 1.0:
            h = h * self.scale
        return h, self.weight, self.bias

    def forward(self, h: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return linear(*self.output(h))


class PooledClassifier(nn.Module):
    """tanh(dense(first token)) and a linear layer: BERT's pooler with a classifier on top.

    Args:
        d_model: D.
        n_classes: K.
        dropout: On what the pooler gives.
    """

    def __init__(self, d_model: int, n_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.pool = nn.Linear(d_model, d_model)
        self.dropout = Dropout(dropout)
        self.classify = nn.Linear(d_model, n_classes)

    def forward(self, h: Tensor) -> Tensor:
        """(B, T, D) to (B, K)."""
        return self.classify(self.dropout(self.pool(h[:, 0]).tanh()))
