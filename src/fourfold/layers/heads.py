"""Output heads: vocabulary head with a tied or separate matrix, and BERT's pooled classifier.

Shapes: B batch, T tokens, D model width, V vocabulary, K classes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.block import norm_from_config
from fourfold.core.config import TransformerConfig
from fourfold.core.feed_forward import ACTIVATIONS
from fourfold.kernels.cpu_decoding import linear
from fourfold.kernels.cross_entropy import cap
from fourfold.kernels.dropout import Dropout
from fourfold.kernels.int8 import Int8Matrix
from fourfold.losses import linear_cross_entropy


class VocabularyHead(nn.Module):
    """Linear map from hidden states to vocabulary logits, optionally tied to the token embedding.

    Args:
        embedding: Token embedding (V, D), whose matrix a tied head uses.
        bias: Learn a bias for each token of the vocabulary (BERT, Marian).
        activation: A name in `fourfold.core.feed_forward.ACTIVATIONS`, used with `transform_norm`.
        transform_norm: Norm of BERT's transform, which precedes the output matrix: a dense layer
            (D, D), the activation and this norm. None means no transform.
        width: Width D of the hidden states of a head that is not tied. None means that of
            `embedding`.
        logit_cap: Limit c of the logits z, which become c tanh(z / c) (Gemma 2), or None.

    Attributes:
        scale: Factor on the hidden states, 1 in all models but T5.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        *,
        tied: bool = True,
        bias: bool = False,
        activation: str = "gelu",
        transform_norm: nn.Module | None = None,
        transform_bias: bool = True,
        width: int | None = None,
        logit_cap: float | None = None,
    ) -> None:
        super().__init__()
        vocab_size, d_model = len(embedding.weight), width or embedding.weight.shape[1]
        self.own = None if tied else nn.Linear(d_model, vocab_size, bias=False)
        # A list hides the module from registration, so that the state dict holds the matrix once.
        self._shared: list[Any] = [embedding]
        self.bias = nn.Parameter(self.weight.new_zeros(vocab_size)) if bias else None
        dense = (d_model, d_model, transform_bias)
        self.transform = None if transform_norm is None else nn.Linear(*dense)
        self.norm = transform_norm
        self.activation = ACTIVATIONS[activation]
        self.scale = 1.0
        self.logit_cap = logit_cap

    @property
    def embedding(self) -> nn.Module:
        """Token embedding whose matrix a tied head uses."""
        return self._shared[0]

    def share(self, embedding: nn.Module) -> None:
        """Replace the token embedding whose matrix a tied head uses, for example by an int8 one."""
        self._shared = [embedding]

    @property
    def weight(self) -> Any:
        """Output matrix (V, D) of the head: a Tensor, or an `Int8Matrix` of a quantized model."""
        return self._shared[0].weight if self.own is None else self.own.weight

    def output(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return input (..., D), weight (V, D) and bias (V,) or None of the map to the logits.

        The logits are ``x @ weight.T + bias``, which `logit_cap` then limits. The weight of a
        quantized model is converted to the data type of `h`.
        """
        weight = self.weight
        if isinstance(weight, Int8Matrix):
            weight = (weight.values * weight.scales).to(h.dtype)
        return self._transformed(h), weight, self.bias

    def _transformed(self, h: Tensor) -> Tensor:
        """Apply BERT's transform, if any, and the factor `scale` to hidden states (..., D)."""
        if self.transform is not None and self.norm is not None:
            y = self.activation(self.transform(h))
            h = self.norm(y.to(h.dtype))  # autocast must not lower the precision of the norm
        if self.scale != 1.0:
            h = h * self.scale
        return h

    def loss(
        self, hidden: Tensor, targets: Tensor, *, weights: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Compute the cross-entropy of the target tokens without holding all logits at once.

        Args:
            hidden: Final hidden states (..., D), such as the result of `model.hidden(ids)`.
            targets: Target token ids int64, of the shape of `hidden` without D. Targets equal to
                `fourfold.losses.IGNORE_INDEX` (-100) are ignored.
            weights: Factor on the loss of each target, of the shape of `targets`. None means 1.
            options: `label_smoothing`, `label_smoothing_type`, `z_loss` and `normalizer` of
                `fourfold.losses.linear_cross_entropy`.
        """
        return linear_cross_entropy(
            *self.output(hidden.flatten(0, -2)),
            targets.flatten(),
            weights=None if weights is None else weights.flatten(),
            logit_cap=self.logit_cap,
            **options,
        )

    def forward(self, h: Tensor) -> Tensor:
        """Map hidden states (..., D) to logits (..., V)."""
        return cap(linear(self._transformed(h), self.weight, self.bias), self.logit_cap)


class ClassHead(nn.Linear):
    """Linear layer from hidden states to the logits of K classes, whose number must be known."""

    def __init__(self, width: int, n_classes: int | None) -> None:
        assert n_classes is not None, "n_classes must be known when a model is built"
        super().__init__(width, n_classes)


class PooledClassifier(nn.Module):
    """BERT's pooler with a classifier, applied to the hidden state of the first token.

    The layers are a dense layer (D, D), tanh, dropout, and a linear layer (D, K).

    Args:
        config: Config with the activation and the norm that replace tanh in ModernBERT, and with
            the option `bias` of the dense layer; None means tanh and a bias.
    """

    def __init__(
        self,
        d_model: int,
        n_classes: int | None,
        dropout: float = 0.0,
        config: TransformerConfig | None = None,
    ) -> None:
        super().__init__()
        self.pool = nn.Linear(d_model, d_model, config is None or config.bias)
        self.activation = torch.tanh if config is None else ACTIVATIONS[config.activation]
        self.norm = None if config is None else norm_from_config(config, d_model)
        self.dropout = Dropout(dropout)
        self.classify = ClassHead(d_model, n_classes)

    def forward(self, h: Tensor) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, K)."""
        y = self.activation(self.pool(h[:, 0]))
        if self.norm is not None:
            y = self.norm(y.to(h.dtype))  # autocast must not lower the precision of the norm
        return self.classify(self.dropout(y))


def pool_tokens(h: Tensor, mask: Tensor | None, pool: str) -> Tensor:
    """Pool hidden states (B, T, D) to (B, 1, D): first, last or mean of the real ones."""
    if pool == "first":
        return h[:, :1]
    if mask is None:
        return h[:, -1:] if pool == "last" else h.mean(1, keepdim=True)
    if pool == "last":
        last = (torch.arange(h.shape[1], device=h.device) * mask).argmax(1)
        return h[torch.arange(h.shape[0], device=h.device), last].unsqueeze(1)
    weights = mask.unsqueeze(-1).to(h.dtype)  # (B, T, 1)
    return (h * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
