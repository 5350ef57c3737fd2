"""`fourfold generate`: a prompt to itself and its continuation.

Shapes: B lines of a batch, N continuations of each, T tokens of the longest prompt, t new tokens.
"""

from argparse import Namespace
from collections import Counter

from torch import Tensor

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import TextVerb, given, one_line
from fourfold.core.errors import InputError
from fourfold.generation import beam_search, generate
from fourfold.tasks import Task

DEFAULT_NEW = 50


class Generate(TextVerb):
    """Greedy, drawn, or by beam search."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        self.copies: Counter[tuple[int, ...]] = Counter()  # of prompts, over all batches

    def prepare(self, line: str) -> Item:
        """Prompt ids and how many tokens may follow, by which they are grouped."""
        ids, wanted, limit = self.tokenizer.encode(line), self.options.max_new, self.longest
        if self.options.document_start or not ids:
            ids = [self.tokenizer.eos_id, *ids]  # what every document follows in training
        if limit is None:
            return self._item(ids, given(wanted, DEFAULT_NEW))
        # The last token that is written is never read. Unasked, write as many as there is room for.
        least = given(wanted, 1)
        room = limit + 1 - least
        if len(ids) > room:
            if room < 1:
                raise InputError(
                    f"--max-new is {least}, but the model writes no more than {limit} tokens"
                )
            if not self.options.truncate:
                raise InputError(
                    f"{len(ids)} tokens and {least} to write are more than the {limit} that the"
                    " model reads; --truncate cuts the beginning off"
                )
            ids = ids[-room:]
        return self._item(ids, min(given(wanted, DEFAULT_NEW), limit + 1 - len(ids)))

    def _item(self, ids: list[int], most: int) -> Item:
        # The length decides how many may follow, and padding would change an LSTM's state.
        is_recurrent = getattr(self.model, "is_recurrent", False)
        return Item((ids, most), len(ids), len(ids) if is_recurrent else most)

    def run(self, items: list[Item]) -> list[str]:
        """Prompt and continuation of each, or N of them with tabs between."""
        prompts = [item.content[0] for item in items]
        ids, mask = self.pad(prompts)
        out = self.write(ids, mask, items[0].content[1])  # (B, N, T + t)
        new = out[:, :, ids.shape[1] :].tolist()
        return ["\t".join(self.text(prompt, row) for row in rows)
                for prompt, rows in zip(prompts, new, strict=True)]  # fmt: skip

    def write(self, ids: Tensor, mask: Tensor, max_new: int) -> Tensor:
        """Prompts (B, T) continued N times each, (B, N, T + t)."""
        options, tokenizer, n = self.options, self.tokenizer, self.options.n_best
        eos_id, pad_id = tokenizer.eos_id, tokenizer.pad_id
        if given(options.beam, 1) > 1:
            out, _ = beam_search(
                self.model, ids, src_mask=mask, beam=options.beam, max_len=max_new, n_best=n,
                length_penalty=given(options.length_penalty, 0.6),
                penalty=given(options.penalty, "gnmt"), eos_id=eos_id, pad_id=pad_id,
            )  # fmt: skip
        else:
            out = generate(
                self.model, ids.repeat_interleave(n, 0), mask=mask.repeat_interleave(n, 0),
                max_new=max_new, temperature=options.temperature, top_k=options.top_k,
                top_p=options.top_p, seed=options.seed, eos_id=eos_id, pad_id=pad_id,
                copies=self.copies,
            )  # fmt: skip
        return out.reshape(len(ids), n, -1)

    def text(self, prompt: list[int], new: list[int]) -> str:
        """Decoded as a whole, since the prompt decides where blanks stand."""
        whole, before = self.tokenizer.decode(prompt + new), self.tokenizer.decode(prompt)
        if self.options.only_new and whole.startswith(before):
            whole = whole[len(before) :]
        return one_line(whole)
