"""`fourfold translate`: a sentence to its translation."""

from argparse import Namespace
from typing import Any

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import TextVerb, given, one_line
from fourfold.core.errors import InputError
from fourfold.generation import beam_search
from fourfold.tasks import Task


class Translate(TextVerb):
    """Beam search as the checkpoint was tested, unless options say otherwise."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        most = getattr(self.model.config, "max_len", None)
        if most is not None and given(options.max_new, 1) > most:
            raise InputError(
                f"--max-new is {options.max_new}, but the model writes no more than {most} tokens"
            )

    def prepare(self, line: str) -> Item:
        """Source ids with EOS, and what the tokenizer puts in front of them."""
        tokenizer = self.tokenizer
        before = [] if tokenizer.opening is None else [tokenizer.opening]
        ids = self.fit(tokenizer.encode(line), special=len(before) + 1)
        return Item([*before, *ids, tokenizer.eos_id], len(ids))

    def run(self, items: list[Item]) -> list[str]:
        """The best translation of each, or the N best with tabs between."""
        task: Any = self.task
        options, tokenizer = self.options, self.tokenizer
        src, mask = self.pad([item.content for item in items])
        best, _ = beam_search(
            self.model, src, src_mask=mask,
            beam=given(options.beam, max(task.beam, options.n_best)),
            length_penalty=given(options.length_penalty, task.length_penalty),
            penalty=given(options.penalty, task.penalty),
            bos_id=task.start_id, eos_id=tokenizer.eos_id, pad_id=tokenizer.pad_id,
            max_len=options.max_new, n_best=options.n_best,
        )  # fmt: skip
        n = options.n_best
        texts = tokenizer.decode_batch(best.reshape(len(items) * n, -1).tolist())
        return ["\t".join(map(one_line, texts[i : i + n])) for i in range(0, len(texts), n)]
