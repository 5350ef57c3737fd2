"""`fourfold fill`: a line with [MASK] or <mask> in it to the line filled in.

Shapes: B lines, T tokens, D model width, V vocabulary, M masks of a batch, N alternatives.
"""

import heapq
import re
from argparse import Namespace

import torch

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import TextVerb, one_line
from fourfold.core.errors import InputError
from fourfold.tasks import Task

MASK = re.compile(r"(\[MASK\]|<mask>)")


class Fill(TextVerb):
    """The most probable tokens at the masks, each mask by itself; special tokens are left out."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        if self.tokenizer.mask_id is None:
            raise InputError("the checkpoint's tokenizer has no mask token")
        self.mask_id = self.tokenizer.mask_id
        self.n = options.top_k
        self.neighbour = self.tokenizer.encode("a")[:1]

    def prepare(self, line: str) -> Item:
        """Ids from CLS to SEP; with them the line, cut at its masks."""
        pieces = MASK.split(line)  # text, mask, text, mask, ..., text
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                ids.append(self.mask_id)
            else:
                # The blank before a mask belongs to the token that is looked for.
                last = number == len(pieces) - 1
                ids += self.tokenizer.encode(piece if last else piece.rstrip())
        ids = [self.tokenizer.bos_id, *self.fit(ids, special=2), self.tokenizer.eos_id]
        return Item((ids, pieces), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Each line filled in, or its N most probable fillings with tabs between."""
        ids, mask = self.pad([item.content[0] for item in items])
        places = ids.eq(self.mask_id)  # (B, T)
        h = self.model.encode(ids, mask=mask)[places]  # (M, D)
        logits = self.model.logits(h).float()  # (M, V)
        logits[:, self.tokenizer.special_ids] = -torch.inf
        scores, tokens = logits.log_softmax(-1).topk(min(self.n, logits.shape[-1]))  # (M, N)
        counts = places.sum(1).tolist()
        return [
            "\t".join(self.fillings(item.content[1], s.tolist(), t.tolist()))
            for item, s, t in zip(items, scores.split(counts), tokens.split(counts), strict=True)
        ]

    def fillings(
        self, pieces: list[str], scores: list[list[float]], tokens: list[list[int]]
    ) -> list[str]:
        """The N best combinations of the tokens of all masks of a line, as lines."""
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for row_scores, row_tokens in zip(scores, tokens, strict=True):
            ranked = list(zip(row_scores, row_tokens, strict=True))  # as `best`, from the best on
            # The i-th of one with the j-th of the other has (i + 1) (j + 1) - 1 better ones.
            best = heapq.nlargest(
                self.n,
                (
                    (score + more, [*chosen, token])
                    for i, (score, chosen) in enumerate(best)
                    for more, token in ranked[: self.n // (i + 1)]
                ),
                key=lambda pair: pair[0],
            )
        return [one_line(self.join(pieces, chosen)) for _, chosen in best]

    def join(self, pieces: list[str], chosen: list[int]) -> str:
        """The line with tokens in place of its masks; a mask that was cut off stays."""
        text = pieces[0]
        for number, (written, after) in enumerate(zip(pieces[1::2], pieces[2::2], strict=True)):
            if number >= len(chosen):
                text += written + after
                continue
            token = self.as_it_follows(chosen[number])
            if not token.startswith(" "):
                text = text.rstrip()  # it goes on with the word before
            elif not text[-1:].isalnum():
                token = token.lstrip()  # the line has its own blank, or wants none
            text += token + after
        return text

    def as_it_follows(self, token: int) -> str:
        """The text of a token behind another word: " cat", "ing"."""
        before = self.tokenizer.decode(self.neighbour)
        return self.tokenizer.decode([*self.neighbour, token]).removeprefix(before)
