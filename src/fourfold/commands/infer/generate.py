"""`fourfold generate`: continue prompts, greedily, by sampling or by beam search.

Shapes: B lines of a batch, N continuations of each, T tokens of the longest prompt, t new tokens.
"""

from argparse import Namespace
from collections import Counter
from typing import Any

from torch import Tensor

from fourfold.commands.infer.base import TextProcessor, escape, with_default
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError
from fourfold.generation import beam_search, generate

DEFAULT_MAX_NEW = 50


class PromptContinuer(TextProcessor):
    """Continuation of one prompt per line."""

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        # Occurrences of each prompt in all batches, so that repeated prompts are sampled anew.
        self.copies: Counter[tuple[int, ...]] = Counter()

    def prepare(self, line: str) -> Item:
        """Return prompt ids and the number of new tokens, by which lines are grouped."""
        ids = self.tokenizer.encode(line)
        max_new = self.options.max_new
        limit = self.max_len
        if self.options.document_start or not ids:
            ids = [self.tokenizer.eos_id, *ids]  # precedes every document in training
        if limit is None:
            return self._item(ids, with_default(max_new, DEFAULT_MAX_NEW))
        # The last generated token is not read. Without --max-new, fill the model's length.
        n_new = with_default(max_new, 1)
        max_prompt = limit + 1 - n_new
        if max_prompt < 1:
            raise InputError(
                f"must be at most {limit}, the length of the model, got {n_new}", option="--max-new"
            )
        if len(ids) > max_prompt:
            if not self.options.truncate:
                raise InputError(
                    f"has {len(ids)} tokens, which leaves no space for {n_new} new ones in the"
                    f" model's {limit}; --truncate removes the beginning",
                    option="the prompt",
                )
            ids = ids[-max_prompt:]
        available = limit + 1 - len(ids)
        return self._item(ids, min(with_default(max_new, DEFAULT_MAX_NEW), available))

    def _item(self, ids: list[int], max_new: int) -> Item:
        # Padding would change the state of an LSTM, so its batches have prompts of one length.
        group = len(ids) if self.model.is_recurrent else max_new
        return Item((ids, max_new), len(ids), group)

    def run(self, items: list[Item]) -> list[str]:
        """Return each prompt with its continuation, or N of them separated by tabs."""
        prompts = [item.content[0] for item in items]
        ids, mask = self.pad(prompts)
        output = self._generate(ids, mask, items[0].content[1])  # (B, N, T + t)
        new = output[:, :, ids.shape[1] :].tolist()
        return [
            "\t".join(self._decode(prompt, row) for row in rows)
            for prompt, rows in zip(prompts, new, strict=True)
        ]

    def _generate(self, ids: Tensor, mask: Tensor, max_new: int) -> Tensor:
        """Continue prompts (B, T) N times each; returns (B, N, T + t)."""
        options = self.options
        n_best = options.n_best
        eos_id = self.tokenizer.eos_id
        pad_id = self.tokenizer.pad_id
        if with_default(options.beam, 1) > 1:
            output, _ = beam_search(
                self.model,
                ids,
                src_mask=mask,
                beam=options.beam,
                max_len=max_new,
                n_best=n_best,
                length_penalty=with_default(options.length_penalty, 0.6),
                length_penalty_type=with_default(options.length_penalty_type, "gnmt"),
                eos_id=eos_id,
                pad_id=pad_id,
            )
        else:
            output = generate(
                self.model,
                ids.repeat_interleave(n_best, 0),
                mask=mask.repeat_interleave(n_best, 0),
                max_new=max_new,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                seed=options.seed,
                eos_id=eos_id,
                pad_id=pad_id,
                copies=self.copies,
            )
        return output.reshape(len(ids), n_best, -1)

    def _decode(self, prompt: list[int], new: list[int]) -> str:
        # Decoded together with the prompt, on which the spaces between tokens depend.
        text = self.tokenizer.decode(prompt + new)
        if self.options.only_new:
            text = text.removeprefix(self.tokenizer.decode(prompt))
        return escape(text)
