"""RecurrentEncoderDecoder: sequence-to-sequence models before the transformer.

The options give the models of Cho et al. 2014, Sutskever et al. 2014, Bahdanau et al. 2015
(RNNsearch) and Luong et al. 2015, and their combinations. Shapes: B batch, S source tokens, T
target tokens, H units of a layer, L layers, R directions of the encoder, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fourfold.core.feed_forward import Linear
from fourfold.core.validation import check_absent
from fourfold.errors import InputError
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import initialize
from fourfold.layers.token_embedding import TokenEmbedding
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.models.recurrent.attention import RecurrentAttention
from fourfold.models.recurrent.cells import (
    RecurrentCache,
    State,
    add_forget_biases,
    flip,
    orthogonal_gates,
    real_tokens,
)
from fourfold.models.recurrent.decoder import (
    RecurrentDecoder,
    RecurrentDecoderConfig,
    RecurrentMemory,
    stack_from_config,
)
from fourfold.models.recurrent.hard_attention import log_weights, mixed_log_probabilities

_NO_PACKING = "a recurrent model, which cannot separate packed pairs"


@dataclass(frozen=True)
class RecurrentEncoderDecoderConfig(RecurrentDecoderConfig):
    """Config of a recurrent encoder-decoder; the defaults are those of Luong et al. 2015.

    The default model has global attention with the score general and input feeding (221,000,000
    parameters). The inherited fields describe the decoder. The fields `d_model`, `hidden_size`,
    `n_layers`, `cell`, `reset`, `forget_bias`, `bias` and `dropout` also describe the encoder.

    Args:
        bidirectional: Read the source in both directions, each with `hidden_size` units.
        bridge: Initial state of the decoder: none (final states of the encoder, layer by layer),
            linear (a linear map of the final states of each layer) or backward (tanh of a linear
            map of the final state of the last backward layer, and zero cells of an LSTM).
        reverse_source: Reverse each source within its own length (Sutskever et al. 2014). Positions
            for local attention remain those of the source.
        tie_embeddings: Layers that share one matrix: all (source embedding, target embedding and
            output), decoder (target embedding and output), embeddings (source and target embedding)
            or none.
        embed_bias: Learn a bias of the embeddings (code of Bahdanau et al. 2015).
        init: Initialization of all parameters: luong (uniform between -0.1 and 0.1), sutskever
            (uniform between -0.08 and 0.08) or bahdanau (orthogonal recurrent matrices, standard
            deviation 0.001 in the attention and 0.01 elsewhere, biases 0).
    """

    bidirectional: bool = False
    bridge: Literal["none", "linear", "backward"] = "none"
    reverse_source: bool = False
    tie_embeddings: Literal["all", "decoder", "embeddings", "none"] = "none"
    embed_bias: bool = False
    init: Literal["luong", "sutskever", "bahdanau"] = "luong"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bridge == "none" and self.bidirectional:
            message = "must be linear or backward for a bidirectional encoder, got none"
            raise InputError(message, option="bridge")
        if self.bridge == "backward" and (not self.bidirectional or self.context == "initial"):
            message = "must be none or linear without a bidirectional encoder and a context"
            raise InputError(f"{message}, got backward", option="bridge")
        if self.tie_embeddings in ("all", "decoder") and self.output_width != self.d_model:
            message = "must be embeddings or none, because the decoder's output has width"
            message += f" {self.output_width} and d_model is {self.d_model}"
            raise InputError(f"{message}; got {self.tie_embeddings}", option="tie_embeddings")


class Bridge(nn.Module):
    """Map from the final state of the encoder to the initial state of the decoder."""

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        hidden, n_maps = config.hidden_size, 0
        if config.bridge != "none":
            has_cells = config.bridge == "linear" and config.cell == "lstm"
            n_maps = config.n_layers * (2 if has_cells else 1)
        width = hidden * (2 if config.bridge == "linear" and config.bidirectional else 1)
        self.maps = nn.ModuleList([Linear(width, hidden, bias=config.bias) for _ in range(n_maps)])

    def forward(self, state: State) -> State:
        """Map the final state (L R, B, H) of the encoder to the initial state (L, B, H)."""
        if self.config.bridge == "none":
            return state
        if self.config.bridge == "backward":
            h = torch.stack([layer(state[0][-1]).tanh() for layer in self.maps])
            return (h, torch.zeros_like(h))[: len(state)]
        shape = (self.config.n_layers, -1)
        inputs = [part.unflatten(0, shape).transpose(1, 2).flatten(2) for part in state]
        rows = torch.cat(inputs).unbind(0)
        mapped = [layer(row) for layer, row in zip(self.maps, rows, strict=True)]
        return torch.stack(mapped).chunk(len(state))


class Bias(nn.Module):
    """Module that adds a learned bias vector to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Add the bias to x (..., width)."""
        return x + self.bias


class RecurrentEncoderDecoder(Seq2Seq):
    """Recurrent encoder-decoder: predicts a target sequence from a source sequence.

    Source: Sutskever et al. 2014; Bahdanau et al. 2015; Luong et al. 2015. Padding of a source may
    be on either side and does not change any state. Padding of a target must be on the right.
    Packed pairs are not supported.
    """

    is_recurrent = True
    cache_class = RecurrentCache
    attention_classes = (RecurrentAttention,)

    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.src_embed, self.tgt_embed = _embedding(config), _embedding(config)
        if config.tie_embeddings in ("all", "embeddings"):
            self.tgt_embed.share_tokens(self.src_embed)
        self.encoder: nn.Module = stack_from_config(  # type: ignore[assignment]
            config, config.d_model, bidirectional=config.bidirectional
        )
        self.bridge = Bridge(config)
        width = config.hidden_size * (2 if config.bidirectional else 1)
        self.summary = None
        if config.context == "every_step":
            self.summary = Linear(width, config.hidden_size, bias=config.bias)
            width = config.hidden_size
        self.decoder: nn.Module = RecurrentDecoder(config, width)  # type: ignore[assignment]
        tied, width = config.tie_embeddings in ("all", "decoder"), config.output_width
        options: Any = {"tied": tied, "bias": config.output_bias, "width": width}
        self.head = VocabularyHead(self.tgt_embed.tokens, **options)
        initialize(self, config.init, INITS)

    def encode(  # type: ignore[override]
        self, src: Tensor, *, src_mask: Tensor | None = None, src_documents: Tensor | None = None
    ) -> RecurrentMemory:
        """Run the encoder over the real tokens of each source, and build the memory of the decoder.

        The vectors of the memory are in the order of the source tokens, with padding on the right.
        An InputError rejects `src_documents`.
        """
        check_absent(_NO_PACKING, src_documents=src_documents)
        lengths = mask = None
        if src_mask is not None and not bool(src_mask.all()):
            lengths = src_mask.sum(1)
            mask = real_tokens(lengths, src.shape[1])
            src = src.gather(1, (~src_mask).long().argsort(dim=1, stable=True))
        is_reversed = self.config.reverse_source
        x = self.src_embed(flip(src, lengths) if is_reversed else src, slice(0, src.shape[1]))
        vectors, final = self.encoder(x, lengths)
        if self.config.context != "attention":
            last = final[0][-2:] if self.config.bidirectional else final[0][-1:]
            last = last.transpose(0, 1).flatten(1)  # (B, R H)
            vectors = (last if self.summary is None else self.summary(last).tanh())[:, None]
            mask = None
        elif is_reversed:
            vectors = flip(vectors, lengths)
        attention: Any = self.decoder.cross_attn
        projected = vectors if attention is None else attention.project(vectors)
        return RecurrentMemory(vectors, mask, self.bridge(final), projected)

    def decode(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: RecurrentMemory,
        *,
        cache: RecurrentCache | None = None,
        tgt_documents: Tensor | None = None,
        **masks: Tensor | None,
    ) -> Tensor:
        """Compute the input (N, T, output width) of the head; N is a multiple of B.

        A model with `mix_outputs` and `attn_weights` softmax returns log-probabilities (N, T, V)
        instead, which are also its logits. Masks are ignored, since the memory holds that of the
        source. An InputError rejects `tgt_documents`.
        """
        check_absent(_NO_PACKING, tgt_documents=tgt_documents)
        if not self._mixes:
            return self.decoder(self.tgt_embed(tgt, slice(0, tgt.shape[1])), memory, cache)
        log_alpha, y, weight, bias = self.decode_by_vector(tgt, memory, cache)
        return mixed_log_probabilities(log_alpha, y, weight, bias).unflatten(0, tgt.shape)

    def decode_by_vector(
        self, tgt: Tensor, memory: RecurrentMemory, cache: RecurrentCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the first four arguments of `hard_attention.marginal_cross_entropy`."""
        x = self.tgt_embed(tgt, slice(0, tgt.shape[1]))
        alpha, y = self.decoder.by_vector(x, memory, cache)  # type: ignore[operator]
        return log_weights(alpha).flatten(0, 1), *self.head.output(y.flatten(0, 1))

    def logits(self, h: Tensor) -> Tensor:
        """Map the result (N, T, output width or V) of `decode` to logits (N, T, V)."""
        return h if self._mixes else super().logits(h)

    @property
    def _mixes(self) -> bool:
        """True if `decode` averages output distributions and returns log-probabilities."""
        return self.config.mix_outputs and self.config.attn_weights == "softmax"


def _embedding(config: RecurrentEncoderDecoderConfig) -> TokenEmbedding:
    """Build a token embedding without positions, with the optional bias of the config."""
    norm = Bias(config.d_model) if config.embed_bias else None
    return TokenEmbedding(config.vocab_size, config.d_model, norm=norm, dropout=config.dropout)


def init_uniform(model: nn.Module, bound: float) -> None:
    """Draw all parameters of a model from the uniform distribution between -bound and bound."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound)
    add_forget_biases(model)


def init_bahdanau(model: nn.Module) -> None:
    """Initialize a model as Bahdanau et al. 2015 do, section B.1.

    Recurrent matrices are orthogonal. The matrices of the attention are drawn from a normal
    distribution with the standard deviation 0.001, and all others with 0.01. Vectors are 0.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or 1 in parameter.shape:
            nn.init.zeros_(parameter)
        elif "weight_hh" in name:
            orthogonal_gates(parameter)
        else:
            nn.init.normal_(parameter, std=0.001 if "cross_attn" in name else 0.01)
    add_forget_biases(model)


INITS: dict[str, Callable[[nn.Module], None]] = {
    "luong": partial(init_uniform, bound=0.1),
    "sutskever": partial(init_uniform, bound=0.08),
    "bahdanau": init_bahdanau,
}
