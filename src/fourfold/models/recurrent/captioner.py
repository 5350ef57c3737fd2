"""RecurrentCaptioner: LSTM captioner with or without visual attention.

Show and tell (Vinyals et al. 2015) and Show, attend and tell (Xu et al. 2015). Shapes: B images, N
rows (N is a multiple of B), S locations of an image, M width of a location's vector, T tokens, D
width of the embedding, H units of the LSTM, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.config import ModelConfig
from fourfold.core.edits import check_cache
from fourfold.core.feed_forward import Linear
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.layers.base_model import Layers
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import initialize, vaswani
from fourfold.layers.token_embedding import TokenEmbedding
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.models.recurrent.attention import RecurrentAttention, Score
from fourfold.models.recurrent.cells import (
    LSTM_RANGES,
    RecurrentCache,
    RecurrentStack,
    add_forget_biases,
    orthogonal_gates,
)
from fourfold.models.recurrent.decoder import Loop, RecurrentMemory
from fourfold.models.vit.model import ViT, ViTConfig


@dataclass(frozen=True)
class RecurrentCaptionerConfig(ModelConfig):
    """Config of a recurrent captioner; the defaults are those of Xu et al. 2015 on COCO.

    Args:
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest caption in tokens.
        d_model: Width D of the embedding and of the deep output.
        hidden_size: Number of units H of the LSTM.
        image: Use of the image: attention (at every step), once (as the input of the LSTM before
            the first token; Vinyals et al. 2015) or none (a language model, for comparison).
        attention: soft, hard_sample or hard_gumbel. With soft, the context is the weighted mean of
            all locations. With hard_sample, the context is one location, drawn at random in
            training, and the task adds the REINFORCE gradient. With hard_gumbel, one location is
            drawn by the straight-through Gumbel estimator. In evaluation, hard attention takes the
            location with the largest weight.
        attn_score: Score of a state and a location: dot, general, concat, additive or scaled.
        d_attn: Width of the hidden layer of the scores additive and concat; None means M.
        attn_temperature: Temperature of hard_gumbel.
        gate: Multiply the context by a scalar sigmoid(w h + b) of the previous state h.
        forget_bias: Number that is added to the initial bias of the forget gate.
        dropout: Dropout probability of the state before the deep output, and of the deep output.
        n_channels: Number of channels M of feature maps; not used with an encoder.
        encoder: Config of a ViT that encodes images, and is trained with the decoder; its locations
            are the patches. None means that the inputs are feature maps (B, M, height, width).
        init: Weight initialization: xu2015 (standard deviation 0.01, orthogonal square and
            recurrent matrices, biases 0), as in the released code; or vaswani (see
            `fourfold.layers.init`; the LSTM keeps torch's uniform distribution), with which small
            models begin to learn much earlier.
    """

    vocab_size: int | None = 10000
    max_len: int = 100
    d_model: int = 512
    hidden_size: int = 1800
    image: Literal["attention", "once", "none"] = "attention"
    attention: Literal["soft", "hard_sample", "hard_gumbel"] = "soft"
    attn_score: Score = "additive"
    d_attn: int | None = None
    attn_temperature: float = 1.0
    gate: bool = True
    forget_bias: float = 0.0
    dropout: float = 0.5
    n_channels: int = 512
    encoder: ViTConfig | None = None
    init: Literal["xu2015", "vaswani"] = "xu2015"
    ranges: ClassVar = LSTM_RANGES


class CaptionDecoder(Layers):
    """LSTM decoder with visual attention and deep output (Xu et al. 2015).

    At each step, the previous hidden state h attends to the locations of the image, which gives the
    context z. A scalar gate multiplies z. The input of the LSTM is the embedded previous token E y
    and z. The output is tanh(L_h h' + E y + L_z z), where h' is the new hidden state. The initial
    hidden state and cell are computed from the mean vector of all locations. Without attention, the
    output has no term L_z z.
    """

    def __init__(self, config: RecurrentCaptionerConfig, memory_size: int) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.d_model
        attends = config.image == "attention"
        self.stack = RecurrentStack(
            width + memory_size * attends, hidden, cell="lstm", forget_bias=config.forget_bias
        )
        self.from_state = Linear(hidden, width)
        self.dropout = Dropout(config.dropout)
        self.cross_attn = self.gate = None
        self.from_image = Linear(memory_size, width) if config.image == "once" else None
        if attends:
            self.cross_attn = RecurrentAttention(
                hidden,
                memory_size,
                score=config.attn_score,
                weights="softmax" if config.attention == "soft" else config.attention,
                d_attn=config.d_attn or memory_size,
                temperature=config.attn_temperature,
            )
            self.gate = Linear(hidden, 1) if config.gate else None
            self.from_context = Linear(memory_size, width, bias=False)
            self.summary = Linear(memory_size, memory_size)
            self.initial_state = Linear(memory_size, hidden)
            self.initial_cell = Linear(memory_size, hidden)

    def memory(self, locations: Tensor) -> RecurrentMemory:
        """Build the memory, with the initial state, from the vectors (B, S, M) of the locations."""
        mean = locations.mean(1)
        if self.cross_attn is not None:
            summary = self.summary(mean).tanh()
            maps = (self.initial_state, self.initial_cell)
            state = tuple(linear(summary).tanh()[None] for linear in maps)
            return RecurrentMemory(locations, None, state, self.cross_attn.project(locations))
        if self.from_image is not None:
            _, state = self.stack(self.from_image(mean)[:, None])
        else:
            zeros = mean.new_zeros(1, len(mean), self.config.hidden_size)
            state = (zeros, zeros)
        return RecurrentMemory(mean[:, None], None, state, mean[:, None])

    def forward(
        self, x: Tensor, memory: RecurrentMemory, cache: RecurrentCache | None = None
    ) -> Tensor:
        """Compute the deep output (N, T, D), the input of the output matrix.

        The arguments are those of `RecurrentDecoder.forward`.
        """
        state, start = memory.start(x, cache)
        if cache is not None and self.cross_attn is not None:
            check_cache(self.cross_attn.edits, cache, start)
        contexts = None
        if self.cross_attn is None:
            h, state = self.stack(x, None, state)
        else:
            loop = Loop(self.stack, x, state)
            context = lambda h, t: self._context(h, memory, t)  # noqa: E731
            hs, contexts = loop.run(state[0][-1], start, context)
            h, state = torch.stack(hs[1:], 1), loop.state
        if cache is not None:
            cache.store(state, x.shape[1])
        y = self.from_state(self.dropout(h)) + x
        if contexts is not None:
            y = y + self.from_context(contexts)
        return self.dropout(y.tanh())

    def _context(self, h: Tensor, memory: RecurrentMemory, position: int) -> Tensor:
        """Compute the gated context (N, M) of the hidden state h (N, H) before a step."""
        context = memory.context(self.cross_attn, h[:, None], position)[:, 0]
        return context if self.gate is None else self.gate(h).sigmoid() * context


class RecurrentCaptioner(Seq2Seq):
    """Captioner with an LSTM decoder: Show and tell, and Show, attend and tell (Xu et al. 2015).

    The inputs are images with `config.encoder`, otherwise feature maps (B, M, height, width), such
    as those of a frozen network. With attention, the embedding of the first token is zero, as in
    the released code of Xu et al. 2015. This model differs from that code in five points. Dropout
    rescales the kept units in training. The attention score has one hidden layer instead of two,
    and no biases. The deep output has one bias instead of two. The gates of the LSTM have two
    biases instead of one, as in torch. Captions of different lengths share a batch.
    """

    is_recurrent = True
    has_known_cost = False  # of a network that computes the feature maps
    cache_class = RecurrentCache
    attention_classes = (Attention, RecurrentAttention)
    accepts_images = True

    def __init__(self, config: RecurrentCaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.src_embed = self.encoder = None  # type: ignore[assignment]
        self.n_prefix, width = 0, config.n_channels
        if config.encoder is not None:
            vit = ViT(replace(config.encoder, n_classes=1, representation_size=None))
            self.src_embed, self.encoder = vit.embed, vit.stack
            self.n_prefix, width = vit.n_prefix, config.encoder.d_model
        self.tgt_embed = TokenEmbedding(config.vocab_size, config.d_model)
        self.decoder: nn.Module = CaptionDecoder(config, width)  # type: ignore[assignment]
        self.head = VocabularyHead(self.tgt_embed.tokens, tied=False, bias=True)
        # The encoder has its own initialization.
        initialize(nn.ModuleList([self.tgt_embed, self.decoder, self.head]), config.init, INITS)

    def encode(self, src: Tensor, **masks: Any) -> RecurrentMemory:  # type: ignore[override]
        """Compute the memory of the decoder from images or feature maps; masks are ignored.

        Raises:
            InputError: The images or feature maps do not have the size or channels of the config.
        """
        if self.config.encoder is not None:
            locations = self.encoder(self.src_embed(src))[:, self.n_prefix :]
        elif src.shape[1] != self.config.n_channels:
            message = f"must be the number of channels of the features, {src.shape[1]}, got"
            message += f" {self.config.n_channels}"
            raise InputError(message, option="model.config.n_channels")
        else:
            locations = src.flatten(2).mT
        return self.decoder.memory(locations)  # type: ignore[operator]

    def decode(  # type: ignore[override]
        self, tgt: Tensor, memory: RecurrentMemory, *, cache: Any = None, **masks: Any
    ) -> Tensor:
        """Compute the input (N, T, D) of the head; padding on the right needs no masks."""
        x = self.tgt_embed(tgt, slice(0, tgt.shape[1]))
        if self.config.image == "attention" and (cache is None or cache.length == 0):
            x = torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1)
        return self.decoder(x, memory, cache)


def init_xu2015(model: nn.Module) -> None:
    """Initialize a captioner as the released code of Xu et al. 2015 does.

    Square matrices, and the recurrent matrix of each gate of the LSTM, are orthogonal. All other
    matrices are drawn from a normal distribution with mean 0 and standard deviation 0.01. Biases
    are 0, except for `forget_bias`.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
        elif "weight_hh" in name or parameter.shape[0] == parameter.shape[1]:
            orthogonal_gates(parameter)
        else:
            nn.init.normal_(parameter, std=0.01)
    add_forget_biases(model)


INITS: dict[str, Callable[[nn.Module], None]] = {"xu2015": init_xu2015, "vaswani": vaswani}
