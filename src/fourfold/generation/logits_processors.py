"""LogitsProcessors: changes of the logits before a token is chosen, in the order of transformers.

Shapes: B rows of a batch, N rows that have not ended, T prompt tokens, t new tokens, L = T + t, V
vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.errors import InputError
from fourfold.generation.inputs import GenerationInputs
from fourfold.layers.generation_defaults import DecodingOptions, first_known
from fourfold.losses import upcast_fp32


class LogitsProcessors:
    """All changes of the logits that a caller and the model ask for.

    Sampling and beam search call it in each step. The tokens of a row are the prompt of a causal
    LM, or the start token of a target, and the new tokens. Padding is not among them, so that a
    result does not depend on the other rows of a batch. `are_used` is False if nothing changes.

    Args:
        inputs: The batch, with the end tokens and the stored options of the model.
        prompt: (B, T) prompts, or start tokens of targets (B, 1).
        suppressed: Tokens that are never chosen.
        given: `DecodingOptions` of the caller, which have precedence over the stored ones.

    Raises:
        InputError: An option is outside its range.
        TypeError: There is no option of this name.
    """

    def __init__(
        self, inputs: GenerationInputs, prompt: Tensor, suppressed: Sequence[int], given: Any
    ) -> None:
        if unknown := given.keys() - DecodingOptions.__annotations__.keys():
            raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
        chosen = {name: value for name, value in given.items() if value is not None}
        options = replace(inputs.defaults, **chosen)  # checks the types
        self._forced = options.forced_bos_token_id
        self._penalty: float = first_known(options.repetition_penalty, 1.0)
        self._ngram_size = options.no_repeat_ngram_size or 0
        self._min_new = options.min_new_tokens or 0
        self._min_length = (options.min_length or 0) if options.min_new_tokens is None else 0
        check_range("repetition_penalty", self._penalty, above=0.0)
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            check_range(name, getattr(options, name) or 0, minimum=0)
        self._vocab_size = size = inputs.vocab_size
        check_range("forced_bos_token_id", self._forced or 0, minimum=0, below=size)
        for token in suppressed:  # -1 would be the last token
            check_range("suppress_tokens", token, minimum=0, below=size)
        if self._forced in suppressed:
            raise InputError("must not be in suppress_tokens", option="forced_bos_token_id")
        counts = self._ngram_size, self._min_new, self._min_length, len(suppressed)
        self.are_used = self._penalty != 1.0 or self._forced is not None or any(counts)
        if not self.are_used:
            return
        ends, never = (prompt.new_tensor([list(x)]) for x in (inputs.eos_ids, suppressed))
        self._ends, self._never = _mark(ends, size), _mark(never, size)  # (1, V)
        is_real = torch.ones_like(prompt).bool() if inputs.is_seq2seq else inputs.real
        order = is_real.byte().argsort(dim=1, stable=True)  # padding first, with an id beyond all
        self._prompt = prompt.masked_fill(~is_real, size).gather(1, order)

    def __call__(self, rows: Tensor, new: Tensor, logits: Tensor) -> Tensor:
        """Return changed logits (N, V), in fp32 or fp64, after new tokens (N, t) of rows (N,)."""
        ids = torch.cat([self._prompt.index_select(0, rows), new], dim=1)  # (N, L)
        size, n = self._vocab_size, self._ngram_size
        logits = upcast_fp32(logits)
        if self._penalty != 1.0:
            penalized = torch.where(logits < 0, logits * self._penalty, logits / self._penalty)
            logits = torch.where(_mark(ids, size), penalized, logits)
        if 0 < n <= ids.shape[1]:
            ngrams = ids.unfold(1, n, 1)  # (N, L - n + 1, n)
            begun = (ngrams[..., :-1] == ids[:, None, ids.shape[1] + 1 - n :]).all(dim=-1)
            repeated = ngrams[..., -1].masked_fill(~begun, size)  # tokens that would complete them
            logits = logits.masked_fill(_mark(repeated, size), -math.inf)
        lengths = (ids < size).sum(dim=1, keepdim=True)
        is_short = (lengths < self._min_length) | (new.shape[1] < self._min_new)
        logits = logits.masked_fill(self._ends & is_short, -math.inf)
        if self._forced is not None and not new.shape[1]:
            first = torch.full_like(logits, -math.inf)
            first[:, self._forced] = 0.0
            logits = torch.where(lengths == 1, first, logits)
        return logits.masked_fill(self._never, -math.inf)


def _mark(ids: Tensor, size: int) -> Tensor:
    """Return (N, V) bool, True for the tokens of each row of ids; the id V = `size` is none."""
    marks = torch.zeros(len(ids), size + 1, dtype=torch.bool, device=ids.device)
    return marks.scatter_(1, ids, True)[:, :-1]
