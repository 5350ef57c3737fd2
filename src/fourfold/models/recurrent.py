"""A causal LM with an LSTM (Hochreiter and Schmidhuber 1997) in the place of its blocks.

Shapes: B batch, T tokens, D model width, H units of an LSTM.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fourfold.core.cache import KVCache
from fourfold.core.errors import InputError
from fourfold.core.masks import Mask
from fourfold.kernels.dropout import Dropout
from fourfold.models.causal_lm import CausalLM, CausalLMConfig
from fourfold.models.classifiers import CausalClassifier, CausalClassifierConfig


class LSTMStack(nn.Module):
    """An LSTM in the place of a `Stack`, and a map back to the width of the embedding.

    Its first weights are torch's own, uniform within 1 / sqrt(H).
    """

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__()
        width, depth = config.d_ff, config.n_layers
        between = config.dropout if depth > 1 else 0.0
        self.lstm = nn.LSTM(config.d_model, width, depth, batch_first=True, dropout=between)
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(width, config.d_model)

    def forward(self, x: Tensor, mask: Mask = Mask(), *, cache: KVCache | None = None) -> Tensor:
        """x (B, T, D) to (B, T, D). Padding stands on the right, where no state looks.

        Raises:
            InputError: Packed documents, which a state runs through; or a cache, which keeps keys
                and values and no state.
        """
        if mask.documents is not None:
            raise InputError("an LSTM cannot keep documents apart: set mark_documents to false")
        if cache is not None:
            raise InputError("an LSTM has no keys and values to keep: decode without a cache")
        y, _ = self.lstm(x)  # (B, T, H)
        return self.down(self.dropout(y))


@dataclass(frozen=True)
class RecurrentLMConfig(CausalLMConfig):
    """A causal LM with an LSTM; the defaults are those of GPT-1's comparison (its Table 5).

    Of the blocks' fields d_model, n_layers and dropout mean the same; the others do nothing.

    Args:
        d_ff: Units of each layer.
        positions: An LSTM knows the order.
    """

    n_layers: int = 1
    d_ff: int = 2048
    positions: str = "none"


class RecurrentLM(CausalLM):
    """Predicts each token from those before it. Padding may stand on the right only."""

    stack_class: ClassVar[type[nn.Module]] = LSTMStack
    is_recurrent: ClassVar[bool] = True


@dataclass(frozen=True)
class RecurrentClassifierConfig(RecurrentLMConfig, CausalClassifierConfig):
    """A causal LM with an LSTM that also gives a sequence a class or a number."""


class RecurrentClassifier(CausalClassifier):
    """Classifies a sequence by a linear layer on the state of its last token."""

    stack_class: ClassVar[type[nn.Module]] = LSTMStack
