"""`fill`: [MASK] or <mask> replaced by the most probable tokens.

Shapes: B texts of a batch, T tokens, D model width, V vocabulary, M masks in all texts of a batch.
N is the number of alternatives, the value of `top_k`. The segments of a text are the strings into
which its masks divide it: text, mask, text, ..., mask, text.
"""

import heapq
from collections.abc import Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import torch

from fourfold.core.validation import check_positive
from fourfold.generation.step import check_logits
from fourfold.generation.text_model import Item, TextModel, check_model, one_or_all, run_batches
from fourfold.layers.base_model import Model
from fourfold.models.masked_lm.encoder_features import EncoderWithFeatures
from fourfold.models.masked_lm.model import MaskedLM
from fourfold.tokenization.tokenizer import Tokenizer


def fill(
    model: Model,
    lines: Sequence[str],
    *,
    top_k: int = 1,
    truncate: bool = False,
    batch_size: int = 32,
) -> list[Any]:
    """Replace each [MASK] or <mask> by the most probable token, as `fourfold fill` does.

    Special tokens are excluded. The tokens of several masks in a text are predicted independently.

    Args:
        model: Masked LM that `fourfold.load` returned.
        lines: Texts with any number of masks.
        top_k: Number of alternatives for each text, the most probable first.
        truncate: Truncate texts that are too long for the model, instead of raising an error. Masks
            after the end that the model reads remain.
        batch_size: Number of texts in a batch.

    Returns:
        The filled texts, or with `top_k` > 1 a list of alternatives for each text.

    Raises:
        InputError: The model is not a masked LM or has no mask token, or a text is too long.
    """
    is_masked_lm = isinstance(model, MaskedLM) and not isinstance(model, EncoderWithFeatures)
    check_model(model, is_masked_lm, "a masked LM")
    check_positive("top_k", top_k)
    text = TextModel(model, truncate=truncate)
    tokenizer, mask_id = text.tokenizer, text.mask_id

    def prepare(line: str) -> Item:
        ids, segments = text.masked(line)
        return Item((ids, segments), len(ids))

    def run(items: list[Item]) -> list[Any]:
        ids, mask = text.pad([item.content[0] for item in items])
        h = text.model.encode(ids, mask=mask)[ids.eq(mask_id)]  # (M, D)
        logits = check_logits(text.model.logits(h).float())  # (M, V)
        logits[:, tokenizer.special_ids] = -torch.inf
        scores, tokens = logits.log_softmax(-1).topk(min(top_k, logits.shape[-1]))
        counts = [item.content[0].count(mask_id) for item in items]
        rows = [
            [join(tokenizer, item.content[1], chosen) for chosen in combine(s, t, top_k)]
            for item, s, t in zip(items, scores.split(counts), tokens.split(counts), strict=True)
        ]
        return one_or_all(rows, top_k)

    return run_batches(lines, prepare, run, batch_size)


def combine(scores: torch.Tensor, tokens: torch.Tensor, top_k: int) -> list[list[int]]:
    """Return the most probable combinations of a token for each mask of a text.

    `scores` and `tokens` (masks, N) are the log-probabilities and ids of the best tokens of each
    mask, highest first.
    """
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for row_scores, row_tokens in zip(scores.tolist(), tokens.tolist(), strict=True):
        longer = (
            (score + more, [*chosen, token])
            for score, chosen in best
            for more, token in zip(row_scores, row_tokens, strict=True)
        )
        best = heapq.nlargest(top_k, longer, key=itemgetter(0))
    return [chosen for _, chosen in best]


def join(tokenizer: Tokenizer, segments: list[str], chosen: list[int]) -> str:
    """Return a text with the tokens `chosen` in place of its first masks; later masks remain."""
    context = tokenizer.encode("a")[:1]
    before = tokenizer.decode(context)
    text = segments[0]
    for mask, after, token_id in zip_longest(segments[1::2], segments[2::2], chosen):
        if token_id is None:
            text += mask + after
            continue
        # The text of the token after another word, such as " cat" or "ing".
        token = tokenizer.decode([*context, token_id]).removeprefix(before)
        if not token.startswith(" "):
            text = text.rstrip()  # continues the preceding word
        elif not text[-1:].isalnum():
            token = token.lstrip()  # the text has a space already, or needs none
        text += token + after
    return text
