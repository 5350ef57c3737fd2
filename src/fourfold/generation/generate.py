"""`generate`: greedy search and sampling with a causal LM or an encoder-decoder.

Shapes: B rows, T prompt or source tokens, t new tokens.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fourfold.core.edits import has_edits
from fourfold.core.validation import MAX_SIZE
from fourfold.generation.inputs import GenerationInputs
from fourfold.generation.logits_processors import LogitsProcessors
from fourfold.generation.renamed import renamed
from fourfold.generation.sampling import Copies, OnTokens, TokenSampler, sample, uniform_per_prompt
from fourfold.generation.step import CausalStep, Step, decoding_mode
from fourfold.layers.generation_defaults import SAMPLING, DecodingOptions, first_known


@renamed(max_new="max_new_tokens")
def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int | None = None,
    eos_id: int | Sequence[int] | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    *,
    min_p: float | None = None,
    mask: Tensor | None = None,
    bos_id: int | None = None,
    pad_id: int | None = None,
    use_cache: bool = True,
    suppress_tokens: Sequence[int] | None = None,
    copies: Copies | None = None,
    on_tokens: OnTokens | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Tensor:
    """Generate a continuation of each prompt, or a target for each source.

    Up to rounding, the result for a prompt does not depend on other prompts, but equal prompts get
    different samples. Special tokens that are None are taken from `model.generation_defaults`.

    Args:
        model: A causal LM or an encoder-decoder.
        ids: Token ids (B, T) int64 of prompts or sources, or source images (B, C, height, width).
        max_new_tokens: None means the stored number, otherwise 50 for a causal LM, the length of
            each source + 50, or the longest caption of the training, if the model can read it.
        eos_id: Token or tokens that end a sequence; [] means that no token does.
        temperature: Divisor of the logits, 0 for greedy search; None means stored options, or 0.
        top_k: Sample from the k most probable tokens only (Fan et al. 2018); None means all tokens.
        top_p: Sample from the most probable tokens with probability p (Holtzman et al. 2020).
        seed: Seed of the samples; None draws a seed from torch's global generator.
        min_p: Sample from tokens with p times the largest probability (Nguyen et al. 2024).
        mask: (B, T) bool, True = real token, padding on either side; None means no padding.
        bos_id: First token of the targets of an encoder-decoder.
        pad_id: Token that fills the columns after EOS; EOS if no padding token is known.
        use_cache: Use a key-value cache; False is slow and serves to verify the cache.
        suppress_tokens: Ids of tokens that are never generated, such as that of `<unk>`.
        copies: Number of earlier occurrences of each prompt (a tuple of its real tokens), updated
            in place. Calls that share it sample equal prompts differently. None starts from 0.
        on_tokens: Function that is called with the new tokens of each step; see `OnTokens`.
        **decoding: `DecodingOptions`, such as `num_return_sequences` (N) and `min_new_tokens`.

    Returns:
        Token ids int64. For a causal LM, (B, T + t): the columns of `ids`, then t new tokens. For
        an encoder-decoder, (B, 1 + t): `bos_id`, then t new tokens. N > 1 adds a dimension after B.

    Raises InputError if an argument is invalid or too large for the model.
    """
    inputs = GenerationInputs(model, ids, mask, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
    sampler = _sampler(inputs.defaults, temperature, top_k, top_p, min_p)
    n = inputs.defaults.n_results(decoding, MAX_SIZE if sampler.temperature > 0.0 else 1)
    inputs.repeat(n)
    limit = inputs.limit(max_new_tokens, minimum=0)  # (B N,)
    most = int(limit.max())
    draws = torch.zeros(len(limit), most, dtype=torch.float32, device=ids.device)
    if sampler.temperature > 0.0:
        draws = uniform_per_prompt(inputs.row_keys, inputs.real, most, seed, copies)
    with decoding_mode(model) as inputs.model:
        step, start = inputs.start(inputs.model.new_cache() if use_cache else None)
        step = _fastest(step, start, most, model)
        processors = LogitsProcessors(inputs, start, suppress_tokens or (), decoding)
        rest: Any = inputs.eos_ids, inputs.pad_id, on_tokens, processors
        new = sample(step, start, limit, sampler, draws, *rest)
        if hasattr(step, "keep"):
            step.keep()
    return torch.cat([start, new], dim=1).unflatten(0, (-1, n)).squeeze(1)


def _sampler(stored: Any, temperature: float | None, *filters: Any) -> TokenSampler:
    """Return the sampler; stored options are used only if the temperature is not given."""
    if temperature is None:
        pairs = zip(filters, SAMPLING[1:], strict=True)
        filters = tuple(first_known(x, getattr(stored, name)) for x, name in pairs)
    return TokenSampler(first_known(temperature, stored.temperature, 0.0), *filters)


def _fastest(step: Step, start: Tensor, new_tokens: int, model: nn.Module) -> Step:
    """Return the decoding step as a CUDA graph, if this saves time, or the step itself."""
    if not isinstance(step, CausalStep) or not step.has_keys or has_edits(model):
        return step  # a graph replays kernels, not edits
    from fourfold.generation import cuda_graph  # which is not needed to load a model

    if not cuda_graph.is_worth_capturing(start.device, new_tokens):
        return step
    return cuda_graph.GraphStep(step, start.shape[1] + new_tokens, model)
