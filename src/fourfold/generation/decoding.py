"""What a user calls: `generate` and `beam_search`, on a model of either kind that writes text.

Shapes: B rows, T prompt or source tokens, t new tokens, N best.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from fourfold.core.cache import KVCache
from fourfold.core.config import check_word
from fourfold.core.errors import InputError
from fourfold.generation.beam import PENALTIES, search
from fourfold.generation.beam_cache import beam_cache
from fourfold.generation.graph import GraphStep, pays
from fourfold.generation.prompts import Prompts
from fourfold.generation.sampling import Sampler, draw_numbers, sample
from fourfold.generation.step import CausalStep, Step
from fourfold.kernels.linear import few_rows


def generate(
    model: nn.Module,
    ids: Tensor,
    max_new: int | None = None,
    eos_id: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    *,
    mask: Tensor | None = None,
    bos_id: int = 1,
    pad_id: int | None = None,
    use_cache: bool = True,
    copies: Counter[tuple[int, ...]] | None = None,
) -> Tensor:
    """Continue prompts with a causal LM, or write targets for sources with an encoder-decoder.

    Sources may be images (B, C, side, side), where the encoder reads such; one counts as one token.

    A row does not depend on its neighbours (up to rounding): not on their number or length, nor,
    for a given seed, on what is drawn for them. Copies of a row are drawn differently.

    Args:
        model: A `CausalLM` or an `EncoderDecoder`; left in the mode it came in.
        ids: (B, T) int64, prompts or sources.
        max_new: Most tokens to write. None, for an encoder-decoder only: the length of each
            source + 50, or as many as the model has positions for.
        eos_id: The token that ends a row; None writes `max_new` tokens.
        temperature: 0 takes the most probable token, otherwise divides the logits.
        top_k: Draw among the k most probable tokens only.
        top_p: Draw among the fewest tokens whose probabilities reach p only.
        seed: Of the draws; None takes one from torch's global generator.
        mask: (B, T) bool, True = real token; padding may stand on either side.
        bos_id: What a target starts with (encoder-decoder only).
        pad_id: Fills the columns after EOS; None repeats EOS.
        use_cache: False computes everything anew at each token, to check the cache.
        copies: Give the same counter to call after call, and copies of a row are drawn differently
            over all of them.

    Returns:
        (B, T + t) int64: the columns of `ids` as they are, then the new tokens; for an
        encoder-decoder (B, 1 + t), `bos_id` and then the new tokens.

    Raises:
        InputError: An argument outside its range, or more tokens than the model has positions for.
    """
    sampler = Sampler(temperature, top_k, top_p)
    prompts = Prompts(model, ids, mask, bos_id, eos_id)
    if max_new is None and not prompts.is_seq2seq:
        raise InputError("max_new is missing: say how many tokens to write")
    limit = prompts.limit("max_new", max_new, least=0)  # (B,)
    most = int(limit.max())
    draws = torch.zeros(len(ids), most, dtype=torch.float32, device=ids.device)
    if temperature > 0.0:
        draws = draw_numbers(prompts.tokens, prompts.real, most, seed, copies)
    filler = pad_id if pad_id is not None else eos_id or 0
    with inference(model):
        step: Step
        step, start = prompts.start(KVCache() if use_cache else None)
        if isinstance(step, CausalStep) and step.cache is not None and pays(ids.device, most):
            step = GraphStep(step, start.shape[1] + most)
        new = sample(step, start, limit, sampler, draws, eos_id=eos_id, pad_id=filler)
    return torch.cat([start, new], dim=1)


def beam_search(
    model: nn.Module,
    src: Tensor,
    beam: int = 4,
    length_penalty: float = 0.6,
    penalty: str = "gnmt",
    *,
    src_mask: Tensor | None = None,
    bos_id: int = 1,
    eos_id: int = 2,
    pad_id: int = 0,
    max_len: int | None = None,
    n_best: int = 1,
    use_cache: bool = True,
) -> tuple[Tensor, Tensor]:
    """The best-scoring targets that a beam search finds; by default as in Vaswani et al. 2017.

    Args:
        model: An `EncoderDecoder`, or a `CausalLM` whose prompts are `src`.
        src: (B, T) int64, or images (B, C, side, side), one of which counts as one token.
        beam: How many hypotheses stay open; 1 is greedy search.
        length_penalty: The exponent of the penalty, alpha.
        penalty: What the log-probability of n tokens, EOS among them, is divided by: gnmt
            ((5 + n) / 6) ** alpha, power n ** alpha, none 1.
        src_mask: (B, T) bool, True = real token; padding may stand on either side.
        bos_id: What a target starts with (encoder-decoder only).
        eos_id: The token that ends a target.
        pad_id: Fills the columns after EOS.
        max_len: Most tokens to write, EOS among them; None: the length of each source + 50, or
            as many as the model has positions for.
        n_best: How many targets to return for each source, at most `beam`.
        use_cache: False computes everything anew at each token, to check the cache.

    Returns:
        ids (B, 1 + t) int64, starting with `bos_id` (a causal LM: with the columns of `src`), and
        scores (B,). With `n_best` above 1, (B, N, 1 + t) and (B, N): first the targets that
        ended, then those cut at `max_len`, each by score; where no target is left to return
        stands padding with the score -inf.

    Raises:
        InputError: An argument outside its range, or more tokens than the model has positions for.
    """
    check_word("penalty", penalty, tuple(PENALTIES))
    if not math.isfinite(length_penalty):
        raise InputError(f"length_penalty is {length_penalty}, but must be a finite number")
    prompts = Prompts(model, src, src_mask, bos_id, eos_id)
    if eos_id is None:
        raise InputError("eos_id is None, but a beam search needs to know where a target ends")
    if not 1 <= beam <= prompts.vocab_size:
        raise InputError(
            f"beam is {beam}, but must lie between 1 and {prompts.vocab_size}, the vocabulary size"
        )
    if not 1 <= n_best <= beam:
        raise InputError(f"n_best is {n_best}, but must lie between 1 and {beam}, the beam")
    limit = prompts.limit("max_len", max_len, least=1)  # (B,)
    with inference(model):
        step, start = prompts.start(beam_cache(model) if use_cache else None)
        new, scores = search(
            step, start, limit,
            beam=beam, penalty=penalty, alpha=length_penalty,
            eos_id=eos_id, pad_id=pad_id, n_best=n_best,
        )  # fmt: skip
    # Made outside of inference mode, both may take part in training.
    ids, scores = torch.cat([start[:, None].expand(-1, n_best, -1), new], dim=2), scores.clone()
    return (ids[:, 0], scores[:, 0]) if n_best == 1 else (ids, scores)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it was in.

    Compiled blocks run eagerly: each token would compile them anew, for another length, until
    torch has enough of that and compiles them no more, in training neither.
    """
    modes = [(module, module.training) for module in model.modules()]
    compiled = any(module._compiled_call_impl is not None for module, _ in modes)
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    model.eval()
    try:
        with torch.inference_mode(), few_rows(model.parameters()), eager:
            yield
    finally:
        for module, training in modes:
            module.training = training
