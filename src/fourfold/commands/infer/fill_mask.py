"""`fourfold fill`: replace [MASK] or <mask> in lines by the most probable tokens.

Shapes: B lines, T tokens, D model width, V vocabulary, M masks of a batch, N alternatives.
"""

import heapq
import re
from argparse import Namespace
from typing import Any

import torch

from fourfold.commands.infer.base import TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError

MASK = re.compile(r"(\[MASK\]|<mask>)")


class MaskFiller(TextProcessor):
    """Most probable tokens at each mask, predicted independently; special tokens are excluded."""

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        if self.tokenizer.mask_id is None:
            raise InputError("has a tokenizer without a mask token", option="the checkpoint")
        self.mask_id = self.tokenizer.mask_id
        self.n_best = options.top_k
        self.context = self.tokenizer.encode("a")[:1]

    def prepare(self, line: str) -> Item:
        """Return ids from CLS to SEP, and the line split at its masks."""
        segments = MASK.split(line)  # text, mask, text, mask, ..., text
        ids: list[int] = []
        for number, segment in enumerate(segments):
            if number % 2:
                ids.append(self.mask_id)
            else:
                # The space before a mask belongs to the predicted token.
                is_last = number == len(segments) - 1
                ids += self.tokenizer.encode(segment if is_last else segment.rstrip())
        ids = [self.tokenizer.bos_id, *self.truncate(ids, n_special=2), self.tokenizer.eos_id]
        return Item((ids, segments), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Return each line with its masks filled, or the N most probable ones separated by tabs."""
        ids, mask = self.pad([item.content[0] for item in items])
        positions = ids.eq(self.mask_id)  # (B, T)
        h = self.model.encode(ids, mask=mask)[positions]  # (M, D)
        logits = self.model.logits(h).float()  # (M, V)
        logits[:, self.tokenizer.special_ids] = -torch.inf
        scores, tokens = logits.log_softmax(-1).topk(min(self.n_best, logits.shape[-1]))  # (M, N)
        counts = positions.sum(1).tolist()
        return [
            "\t".join(self.fillings(item.content[1], s.tolist(), t.tolist()))
            for item, s, t in zip(items, scores.split(counts), tokens.split(counts), strict=True)
        ]

    def fillings(
        self, segments: list[str], scores: list[list[float]], tokens: list[list[int]]
    ) -> list[str]:
        """Return the N most probable combinations of tokens for all masks of a line, as lines."""
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for row_scores, row_tokens in zip(scores, tokens, strict=True):
            ranked = list(zip(row_scores, row_tokens, strict=True))  # sorted by score, as `best` is
            # Candidate i of one list with candidate j of the other has (i + 1) (j + 1) - 1 better.
            best = heapq.nlargest(
                self.n_best,
                (
                    (score + more, [*chosen, token])
                    for i, (score, chosen) in enumerate(best)
                    for more, token in ranked[: self.n_best // (i + 1)]
                ),
                key=lambda pair: pair[0],
            )
        return [escape(self.join(segments, chosen)) for _, chosen in best]

    def join(self, segments: list[str], chosen: list[int]) -> str:
        """Return the line with tokens in place of its masks; a truncated mask remains."""
        text = segments[0]
        for number, (mask, after) in enumerate(zip(segments[1::2], segments[2::2], strict=True)):
            if number >= len(chosen):
                text += mask + after
                continue
            token = self._decode_in_context(chosen[number])
            if not token.startswith(" "):
                text = text.rstrip()  # continues the preceding word
            elif not text[-1:].isalnum():
                token = token.lstrip()  # the line has a space already, or needs none
            text += token + after
        return text

    def _decode_in_context(self, token: int) -> str:
        """Return the text of a token after another word, such as " cat" or "ing"."""
        before = self.tokenizer.decode(self.context)
        return self.tokenizer.decode([*self.context, token]).removeprefix(before)
