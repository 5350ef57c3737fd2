"""Line processor of `fourfold fill`: [MASK] or <mask> replaced by the most probable tokens.

Shapes: B lines of a batch, T tokens, D model width, V vocabulary, M masks in all lines of a batch.
N is the number of alternatives, the value of `--top-k`.
"""

import heapq
import re
from argparse import Namespace
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fourfold.commands.infer.base import TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError

MASK = re.compile(r"(\[MASK\]|<mask>)")


class MaskFiller(TextProcessor):
    """Line processor that fills masks by the most probable tokens, special tokens excluded.

    The tokens of several masks in a line are predicted independently.

    Raises:
        InputError: The tokenizer of the checkpoint has no mask token.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        if self.tokenizer.mask_id is None:
            raise InputError("has a tokenizer without a mask token", option="the checkpoint")
        self.mask_id = self.tokenizer.mask_id
        self.context = self.tokenizer.encode("a")[:1]

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (token ids, segments) as content.

        The token ids begin with CLS and end with SEP. The segments are the strings into which the
        masks divide the line: text, mask, text, ..., mask, text.

        Raises:
            InputError: The line is too long for the model, and `--truncate` is not given.
        """
        segments = MASK.split(line)  # text, mask, text, mask, ..., text
        ids: list[int] = []
        for text in segments[:-1:2]:  # the space before a mask belongs to the predicted token
            ids += [*self.tokenizer.encode(text.rstrip()), self.mask_id]
        ids += self.tokenizer.encode(segments[-1])
        ids = [self.tokenizer.bos_id, *self.truncate(ids, n_special=2), self.tokenizer.eos_id]
        return Item((ids, segments), len(ids))

    def logits(self, items: list[Item]) -> Tensor:
        """Return the logits (M, V) of the tokens at the M masks of all lines."""
        ids, mask = self.pad([item.content[0] for item in items])
        h = self.model.encode(ids, mask=mask)[ids.eq(self.mask_id)]  # (M, D)
        logits: Tensor = self.model.logits(h).float()  # (M, V)
        return logits

    def write(self, items: list[Item], logits: Tensor) -> list[str]:
        """Return an output line for each input line.

        An output line holds `--top-k` copies of the input line, separated by tabs, with different
        tokens in place of the masks. The most probable copy is first.
        """
        logits[:, self.tokenizer.special_ids] = -torch.inf
        scores, tokens = logits.log_softmax(-1).topk(min(self.options.top_k, logits.shape[-1]))
        counts = [item.content[0].count(self.mask_id) for item in items]
        return [
            "\t".join(self.fillings(item.content[1], s.tolist(), t.tolist()))
            for item, s, t in zip(items, scores.split(counts), tokens.split(counts), strict=True)
        ]

    def fillings(
        self, segments: list[str], scores: list[list[float]], tokens: list[list[int]]
    ) -> list[str]:
        """Return a line N times, with its masks filled by the N most probable token combinations.

        N is the value of `--top-k`.

        Args:
            segments: The line split at its masks: text, mask, text, ..., mask, text.
            scores: For each mask, log-probabilities of its N most probable tokens, highest first.
            tokens: For each mask, the ids of those N tokens.
        """
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for row_scores, row_tokens in zip(scores, tokens, strict=True):
            longer = (
                (score + more, [*chosen, token])
                for score, chosen in best
                for more, token in zip(row_scores, row_tokens, strict=True)
            )
            best = heapq.nlargest(self.options.top_k, longer, key=itemgetter(0))
        return [escape(self.join(segments, chosen)) for _, chosen in best]

    def join(self, segments: list[str], chosen: list[int]) -> str:
        """Return a line with tokens in place of its masks.

        Args:
            segments: The line split at its masks: text, mask, text, ..., mask, text.
            chosen: A token id for each mask that the model has read. Later masks, which truncation
                removed from the model's input, remain in the line.
        """
        text = segments[0]
        for mask, after, token_id in zip_longest(segments[1::2], segments[2::2], chosen):
            if token_id is None:
                text += mask + after
                continue
            # The text of the token after another word, such as " cat" or "ing".
            before = self.tokenizer.decode(self.context)
            token = self.tokenizer.decode([*self.context, token_id]).removeprefix(before)
            if not token.startswith(" "):
                text = text.rstrip()  # continues the preceding word
            elif not text[-1:].isalnum():
                token = token.lstrip()  # the line has a space already, or needs none
            text += token + after
        return text
