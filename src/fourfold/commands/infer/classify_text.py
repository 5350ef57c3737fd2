"""`fourfold classify` for text: a sentence, or a pair with a tab between, to its class or number.

Shapes: B lines of a batch, T tokens, K classes.
"""

from argparse import Namespace

import numpy as np
import torch

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import TextVerb
from fourfold.core.errors import InputError
from fourfold.data.batch import SequenceBatch
from fourfold.data.ragged import Ragged
from fourfold.data.sequences import join_segments
from fourfold.tasks import Task


class ClassifyText(TextVerb):
    """Sentences read as the data read them that the checkpoint was trained on."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        self.names: list[str] = task.artifacts.get("class_names") or []
        self.separators: int = task.artifacts.get("separators", 1)

    def prepare(self, line: str) -> Item:
        """The ids of a line, cut only where that is allowed."""
        texts = line.split("\t")
        wanted = self.task.artifacts.get("n_texts")  # an imported one does not say
        if len(texts) > 2 or len(texts) != (wanted or len(texts)):
            raise InputError(
                f"{len(texts)} texts with tabs between, but the model reads {wanted or '1 or 2'}"
            )
        parts = [self.tokenizer.encode(text) for text in texts]
        special = 2 + self.separators * (len(parts) - 1)
        n, limit = sum(map(len, parts)) + special, self.longest
        if limit is not None and n > limit and not self.options.truncate:
            raise InputError(
                f"{n} tokens are more than the {limit} that the model reads; --truncate cuts them"
            )
        columns = [Ragged.from_lengths(np.array(p, np.int64), np.array([len(p)])) for p in parts]
        rows, first = join_segments(columns, self.tokenizer, limit or n, self.separators)
        ids = rows[0].tolist()
        return Item((ids, int(first[0])), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Class and probability, or K of both, with tabs between; or a number."""
        ids, mask = self.pad([item.content[0] for item in items])  # (B, T)
        first = torch.tensor([[item.content[1]] for item in items], device=self.device)
        segments = ((torch.arange(ids.shape[1], device=self.device) >= first) & mask).long()
        nothing = torch.zeros(len(items), dtype=torch.long, device=self.device)
        batch = SequenceBatch(ids, nothing, segments, mask, nothing)
        logits = self.task.logits(batch).float()  # type: ignore[operator]
        if logits.shape[-1] == 1:
            return [f"{number:.4f}" for number in logits.squeeze(-1).tolist()]
        p, k = logits.softmax(-1).topk(min(self.options.top_k, logits.shape[-1]))
        return [
            "\t".join(f"{self.names[c]}\t{x:.4f}" for x, c in zip(row, classes, strict=True))
            for row, classes in zip(p.tolist(), k.tolist(), strict=True)
        ]
