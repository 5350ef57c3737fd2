"""Causal language model: GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019).

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from fourfold.core.attention import Attention
from fourfold.core.block import Stack
from fourfold.core.config import Activation, Init, NormPlacement, TextPositions
from fourfold.core.kv_cache import KVCache
from fourfold.core.masks import mask_and_positions
from fourfold.errors import InputError
from fourfold.generation.caches import WindowCache
from fourfold.kernels.cross_entropy import cap
from fourfold.layers.base_model import BaseSizeConfig, Model, embedding_from_config
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.init import initialize


@dataclass(frozen=True)
class CausalLMConfig(BaseSizeConfig):
    """Config of a causal LM; the defaults are GPT-2 small (124,439,808 parameters).

    Source: Radford et al. 2019, section 2.3 and Table 2.

    Args:
        vocab_size: Size V of the vocabulary. None takes that of the tokenizer.
        max_len: Longest sequence in tokens.
        positions: none, learned, sinusoidal (sines and cosines alternate) or sinusoidal_halves (all
            sines before all cosines).
        embed_scale: Factor on token embeddings, such as sqrt(d_model) in Gemma, rounded to the data
            type of the weights. None means 1.
        embed_norm: Normalize the sum of token and position embedding (for BERT as a decoder).
        tie_embeddings: Use the token embedding as output matrix.
        score_cap: Limit c of the attention scores s, which become c tanh(s / c) before the mask (50
            in Gemma 2). Attention then stores all scores, since no fused kernel has this limit.
            None means no limit.
        logit_cap: The same limit of the logits (30 in Gemma 2), or None.
        init: Weight initialization, a name in `fourfold.layers.init.INITS`.
    """

    activation: Activation = "gelu_tanh"
    norm_placement: NormPlacement = "pre"
    norm_eps: float = 1e-5
    attn_dropout: float = 0.1
    vocab_size: int | None = 50257
    max_len: int = 1024
    positions: TextPositions = "learned"
    embed_scale: float | None = None
    embed_norm: bool = False
    tie_embeddings: bool = True
    score_cap: float | None = None
    logit_cap: float | None = None
    init: Init = "gpt2"
    ranges: ClassVar = {key: {"above": 0.0} for key in ("embed_scale", "score_cap", "logit_cap")}


class CausalLM(Model):
    """Causal language model, which predicts each token from the tokens before it.

    Source: Radford et al. 2018, section 3.1; Radford et al. 2019, section 2.3. A call of the model
    takes the arguments of `hidden` and returns the logits (B, T, V) of the next token at each
    position.

    Attributes:
        stack_class: Class of the module between embedding and head, built from the config.
    """

    can_generate = True
    stack_class: ClassVar[type[nn.Module]] = Stack
    head: VocabularyHead

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = embedding_from_config(config, has_norm=config.embed_norm)
        self.stack = self.stack_class(config)
        if config.score_cap is not None:
            for module in self.stack.modules():
                if isinstance(module, Attention):
                    module.normalize = partial(capped_softmax, limit=config.score_cap)
        self.head = VocabularyHead(
            self.embed.tokens, tied=config.tie_embeddings, logit_cap=config.logit_cap
        )
        initialize(self, config.init)

    def new_cache(self) -> KVCache:
        """Build an empty cache, in which layers with a window store few tokens."""
        windows = self.config.windows()
        return WindowCache(windows) if any(windows) else KVCache()

    def hidden(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """Compute the final hidden states (B, T, D), which are the input of the head.

        A token attends to the tokens before it, and to those of the `prefix` (B, T) of its
        document, see `Mask`. InputError if the prefix has another length, or if the cache has
        earlier tokens, which have not seen the prefix.
        """
        attn_mask, positions = mask_and_positions(ids, mask, documents, cache, causal=True)
        n_tokens = ids.shape[1] if cache is None else cache.length
        if prefix is not None and prefix.shape[1] != n_tokens:
            message = f"must have one column for each of {n_tokens} tokens, got {prefix.shape[1]}"
            raise InputError(message, option="prefix")
        attn_mask = replace(attn_mask, prefix=prefix)
        return self.stack(self.embed(ids, positions), attn_mask, cache=cache)


def capped_softmax(scores: Tensor, limit: float) -> Tensor:
    """Apply softmax to c tanh(s / c) over the keys, for scores s (B, H, Tq, Tk) and c = `limit`."""
    return cap(scores, limit).masked_fill(scores == -torch.inf, -torch.inf).softmax(-1)
