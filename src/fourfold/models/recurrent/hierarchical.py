"""Hierarchical attention network, a document classifier with two levels (Yang et al. 2016).

A level encodes a sequence of vectors and pools the result into one vector. The first level turns
the words of a sentence into a sentence vector. The second level turns the sentence vectors of a
document into a document vector, which is classified. The input holds the sentences of all documents
of a batch, one after the other, so no sentence consists of padding. Shapes: N sentences of all
documents, T words of the longest sentence, B documents, S sentences of the longest document, E
width of the embedding, D width of an annotation (an output vector of an encoder), K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from fourfold.core.attention import Attention
from fourfold.core.block import Stack
from fourfold.core.config import Init, TextPositions, TransformerConfig
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.layers.base_model import Layers, Model
from fourfold.layers.heads import ClassHead
from fourfold.layers.init import initialize
from fourfold.layers.padded_rnn import run_padded
from fourfold.layers.positions import make_positions
from fourfold.layers.token_embedding import TokenEmbedding
from fourfold.models.recurrent.cells import real_tokens

Pool = Literal["mean", "max", "attention"]


@dataclass(frozen=True)
class HierarchicalClassifierConfig(TransformerConfig):
    """Config of a hierarchical attention network; the defaults are the sizes of Yang et al. 2016.

    The fields of `TransformerConfig` configure the blocks of `encoder: block`. A GRU has only
    `d_model`, `n_layers` and `dropout`.

    Args:
        encoder: gru (bidirectional, `d_model` / 2 units in each direction) or block (transformer
            blocks with full attention).
        pool: Pooling of each level: mean (HN-AVE), max (HN-MAX) or attention (HN-ATT). The names in
            parentheses are those of the paper.
        levels: 2 for words and sentences, or 1 for a flat model, which reads a document as one
            sequence of words.
        d_embed: Width E of the word embedding.
        d_model: Width D of the annotations, and of the hidden layer and the context vector of the
            attention.
        n_layers: Number of layers of the encoder of each level.
        dropout: Dropout probability of the embedding, between the layers of a GRU, and of the
            sub-layers of a block.
        head_dropout: Dropout probability of the document vector.
        vocab_size: Size of the vocabulary. None takes that of the tokenizer.
        n_classes: Number of classes K, or 1 to predict a number (regression). None takes that of
            the data.
        max_len: Largest number of words of a sentence.
        max_sentences: Largest number of sentences of a document.
        positions: Positions of blocks in each sequence; see `MaskedLMConfig`. A GRU has none.
        init: Initialization of embedding and linear layers, a name in `fourfold.layers.init.INITS`.
            A GRU keeps torch's initialization, U(-1/sqrt(D/2), 1/sqrt(D/2)).
    """

    encoder: Literal["gru", "block"] = "gru"
    pool: Pool = "attention"
    levels: Literal[1, 2] = 2
    d_embed: int = 200
    d_model: int = 100
    n_layers: int = 1
    n_heads: int = 4
    d_ff: int = 400
    dropout: float = 0.0
    head_dropout: float = 0.0
    vocab_size: int | None = None
    n_classes: int | None = None
    max_len: int = 50
    max_sentences: int = 30
    positions: TextPositions = "sinusoidal"
    init: Init = "vaswani"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder == "gru" and self.d_model % 2:
            message = f"must be even for a bidirectional GRU, got {self.d_model}"
            raise InputError(message, option="d_model")


class Pooling(nn.Module):
    """Weighted mean, or maximum, of the annotations of a sequence.

    The weights of "attention" are softmax(tanh(W h + b) . u), where the context vector u is a
    parameter (Yang et al. 2016, eqs. 5 to 7). The weights of "mean" are equal.
    """

    def __init__(self, d_model: int, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        if pool == "attention":
            self.project = nn.Linear(d_model, d_model)
            self.context = nn.Parameter(torch.empty(d_model).normal_(std=d_model**-0.5))

    def forward(self, h: Tensor, real: Tensor) -> Tensor:
        """Pool the annotations h (N, T, D), real or padding, to one vector (N, D) each."""
        if self.pool == "max":
            return h.masked_fill(~real.unsqueeze(-1), -torch.inf).amax(1)
        return (self.weights(h, real).unsqueeze(1) @ h).squeeze(1)

    def weights(self, h: Tensor, real: Tensor) -> Tensor:
        """Compute the weights (N, T) of the elements of each sequence, which sum to 1.

        The weight of padding is 0. For max, the weight of an element is the fraction of the D
        channels whose maximum is at this element.
        """
        if self.pool == "max":
            places = h.masked_fill(~real.unsqueeze(-1), -torch.inf).argmax(1)  # (N, D)
            shares = torch.full_like(places, 1 / places.shape[1], dtype=h.dtype)
            return h.new_zeros(real.shape).scatter_add_(1, places, shares)
        scores = h.new_zeros(real.shape)
        if self.pool == "attention":
            scores = self.project(h).tanh() @ self.context  # (N, T)
        return scores.masked_fill(~real, -torch.inf).softmax(-1)

    def watch_weights(self, visit: Callable[[Tensor, Tensor], None]) -> RemovableHandle:
        """Pass the weights of each call, and the mask of its keys, to a function."""

        def hook(pool: Pooling, args: tuple[Tensor, Tensor]) -> None:
            visit(*(x[:, None, None] for x in (pool.weights(*args), args[1])))

        return self.register_forward_pre_hook(hook)


class Level(Layers):
    """Encoder and pooling of the words of sentences, or of the sentences of documents."""

    def __init__(self, config: HierarchicalClassifierConfig, d_in: int, max_len: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.gru = None
        if config.encoder == "gru":
            self.gru = nn.GRU(
                *(d_in, d_model // 2, config.n_layers),
                batch_first=True,
                bidirectional=True,
                dropout=config.dropout if config.n_layers > 1 else 0.0,
            )
        else:
            self.project = nn.Identity() if d_in == d_model else nn.Linear(d_in, d_model)
            self.positions = make_positions(config.positions, max_len, d_model)
            self.stack = Stack(config)
        self.pool = Pooling(d_model, config.pool)

    def encode(self, x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Encode sequences of vectors (N, T, ...), each of at least one real element.

        The result is the annotations (N, T, D), and the mask (N, T) bool of the real elements.
        """
        sizes = torch.tensor(lengths, device="cpu")
        real = real_tokens(sizes.to(x.device), x.shape[1])  # (N, T)
        if self.gru is not None:
            return run_padded(self.gru, x, sizes)[0], real
        h = self.project(x)
        if self.positions is not None:
            h = h + self.positions(slice(0, x.shape[1]))
        return self.stack(h, Mask(keys=real)), real

    def forward(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Encode sequences of vectors, and pool each sequence into one vector (N, D)."""
        return self.pool(*self.encode(x, lengths))


class HierarchicalClassifier(Model):
    """Document classifier with two levels of encoders and poolings (Yang et al. 2016).

    With `config.levels` = 1 the classifier is flat: one encoder reads all words of a document. A
    call of the model takes the arguments of `hidden` and returns the logits (B, K).
    """

    config: HierarchicalClassifierConfig
    attention_classes = (Attention, Pooling)
    has_known_cost = False  # it depends on the number of sentences

    def __init__(self, config: HierarchicalClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = TokenEmbedding(config.vocab_size, config.d_embed, dropout=config.dropout)
        is_flat = config.levels == 1
        longest = config.max_len * (config.max_sentences if is_flat else 1)
        self.words = Level(config, config.d_embed, longest)
        self.sentences = None if is_flat else Level(config, config.d_model, config.max_sentences)
        self.dropout = Dropout(config.head_dropout)
        self.head = ClassHead(config.d_model, config.n_classes)
        initialize(self, config.init)

    def hidden(self, ids: Tensor, n_words: Sequence[int], n_sentences: Sequence[int]) -> Tensor:
        """Compute the document vectors (B, D).

        Args:
            n_words: Number of words of each of the N sentences, at least 1.
            n_sentences: Number of sentences of each of the B documents, at least 1.

        Raises:
            InputError: A sequence is too long for the positions of the blocks.
        """
        if self.sentences is None:
            ids, n_words, _ = _join_sentences(ids, n_words, n_sentences)
        h = self.words(self.embed(ids, slice(0)), n_words)
        if self.sentences is not None:
            h = self.sentences(_divide(h, n_sentences), n_sentences)
        return self.dropout(h)

    def weights(
        self, ids: Tensor, n_words: Sequence[int], n_sentences: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Compute the pooling weights (N, T) of words and (B, S) of sentences, 0 at padding.

        The weight that the paper displays for a word is sqrt(p_s) p_w, where p_w is the weight of
        the word and p_s is the weight of its sentence. In a flat model, the weights of the words
        sum to 1 in each document, and each sentence has the weight 1.
        """
        if self.sentences is None:
            joined, sizes, places = _join_sentences(ids, n_words, n_sentences)
            found = self.words.pool.weights(*self.words.encode(self.embed(joined, slice(0)), sizes))
            words = found.new_zeros(ids.numel())
            words.scatter_add_(0, places.flatten(), found.flatten())  # adds 0 at padding
            return words.view(ids.shape), _divide(found.new_ones(len(n_words)), n_sentences)
        annotations = self.words.encode(self.embed(ids, slice(0)), n_words)
        vectors = _divide(self.words.pool(*annotations), n_sentences)
        sentences = self.sentences.encode(vectors, n_sentences)
        return self.words.pool.weights(*annotations), self.sentences.pool.weights(*sentences)


def _divide(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Divide the rows of x (N, ...) into groups of consecutive rows, one for each document."""
    return pad_sequence(list(x.split(list(sizes))), batch_first=True)


def _join_sentences(
    ids: Tensor, n_words: Sequence[int], n_sentences: Sequence[int]
) -> tuple[Tensor, list[int], Tensor]:
    """Join the sentences of each document to one sequence of words."""
    sizes = torch.tensor(n_words)
    real = torch.arange(ids.shape[1]) < sizes.unsqueeze(1)  # (N, T)
    totals = [int(part.sum()) for part in sizes.split(list(n_sentences))]
    places = _divide(real.flatten().nonzero().squeeze(1), totals).to(ids.device)
    return ids.flatten()[places], totals, places
