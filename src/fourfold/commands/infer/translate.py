"""`fourfold translate`: translate sentences by beam search."""

from argparse import Namespace
from typing import Any

from fourfold.commands.infer.base import TextProcessor, escape, with_default
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError
from fourfold.generation import beam_search


class SentenceTranslator(TextProcessor):
    """Translation of one sentence per line; the defaults are those of the checkpoint's task."""

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        limit = getattr(self.model.config, "max_len", None)
        if limit is not None and with_default(options.max_new, 1) > limit:
            raise InputError(
                f"must be at most {limit}, the length of the model, got {options.max_new}",
                option="--max-new",
            )

    def prepare(self, line: str) -> Item:
        """Return source ids with EOS and the token that the tokenizer prepends, if any."""
        tokenizer = self.tokenizer
        prefix = [] if tokenizer.prepended_id is None else [tokenizer.prepended_id]
        ids = self.truncate(tokenizer.encode(line), n_special=len(prefix) + 1)
        return Item([*prefix, *ids, tokenizer.eos_id], len(ids))

    def run(self, items: list[Item]) -> list[str]:
        """Return the best translation of each line, or the N best separated by tabs."""
        options = self.options
        n_best = options.n_best
        src, mask = self.pad([item.content for item in items])
        best, _ = beam_search(
            self.model,
            src,
            src_mask=mask,
            beam=with_default(options.beam, max(self.task.num_beams, n_best)),
            length_penalty=with_default(options.length_penalty, self.task.length_penalty),
            length_penalty_type=with_default(
                options.length_penalty_type, self.task.length_penalty_type
            ),
            bos_id=self.task.start_id,
            eos_id=self.tokenizer.eos_id,
            pad_id=self.tokenizer.pad_id,
            max_len=options.max_new,
            n_best=n_best,
        )
        texts = self.tokenizer.decode_batch(best.reshape(len(items) * n_best, -1).tolist())
        groups = range(0, len(texts), n_best)
        return ["\t".join(map(escape, texts[i : i + n_best])) for i in groups]
