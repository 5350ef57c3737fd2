"""Line processor of `fourfold generate`: prompts continued greedily, by sampling or beam search.

Shapes: B lines of a batch, N continuations per line, T tokens of the longest prompt, t new tokens.
"""

from argparse import Namespace
from collections import Counter
from typing import Any

from torch import Tensor

from fourfold.commands.infer.base import TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError
from fourfold.generation import generate

DEFAULT_MAX_NEW = 50  # tokens


class PromptContinuer(TextProcessor):
    """Line processor that continues one prompt per line.

    Raises:
        InputError: `--max-new` exceeds the maximum length of the model.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        if self.max_len is not None and (options.max_new or 0) > self.max_len:
            raise InputError(
                f"must be at most {self.max_len}, the length of the model, got {options.max_new}",
                option="--max-new",
            )
        # Number of times that each prompt was read, so that a repeated prompt is sampled anew.
        self.copies: Counter[tuple[int, ...]] = Counter()

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (token ids, maximum number of new tokens) as content.

        `--truncate` removes tokens at the beginning of a prompt that is too long.

        Raises:
            InputError: The prompt is too long, and `--truncate` is not given.
        """
        ids = self.tokenizer.encode(line)
        if self.tokenizer.prepended_id is not None:
            ids = [self.tokenizer.prepended_id, *ids]
        if self.options.document_start or not ids:
            ids = [self.tokenizer.eos_id, *ids]  # precedes every document in training
        max_new = self.options.max_new or DEFAULT_MAX_NEW
        if self.max_len is not None:
            # The model does not read the last new token, which therefore needs no position.
            limit = self.max_len + 1 - (self.options.max_new or 1)
            if len(ids) > limit and not self.options.truncate:
                raise InputError(
                    f"has {len(ids)} tokens, but only {limit} leave space for new tokens in the"
                    " model; --truncate removes the beginning",
                    option="the prompt",
                )
            ids = ids[-limit:]
            max_new = min(max_new, self.max_len + 1 - len(ids))
        # Padding would change the state of an LSTM, so its batches have prompts of one length.
        group = len(ids) if self.model.is_recurrent else max_new
        return Item((ids, max_new), len(ids), group)

    def run(self, items: list[Item]) -> list[str]:
        """Return for each prompt its `--n-best` continuations, separated by tabs.

        Each continuation follows a copy of the prompt, unless `--only-new` is given.
        """
        prompts = [item.content[0] for item in items]
        ids, mask = self.pad(prompts)
        new = self._generate(ids, mask, items[0].content[1])[:, :, ids.shape[1] :].tolist()
        return [
            "\t".join(self._decode(prompt, row) for row in rows)
            for prompt, rows in zip(prompts, new, strict=True)
        ]

    def _generate(self, ids: Tensor, mask: Tensor, max_new: int) -> Tensor:
        """Continue prompts N times each, and return the prompts with their continuations.

        N is the value of `--n-best`.

        Args:
            ids: Token ids of the prompts (B, T).
            mask: Mask (B, T), True for real tokens.
            max_new: Maximum number of new tokens.

        Returns:
            Token ids (B, N, T + t), for t new tokens.
        """
        options = self.options
        if (options.beam or 1) > 1:
            return self.beam_search(ids, mask, max_len=max_new)
        output = generate(
            self.model,
            ids.repeat_interleave(options.n_best, 0),
            mask=mask.repeat_interleave(options.n_best, 0),
            max_new=max_new,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            eos_id=self.tokenizer.eos_id,
            pad_id=self.tokenizer.pad_id,
            copies=self.copies,
        )
        return output.reshape(len(ids), options.n_best, -1)

    def _decode(self, prompt: list[int], new: list[int]) -> str:
        # Decoded together with the prompt, on which the spaces between tokens depend.
        text = self.tokenizer.decode(prompt + new)
        if self.options.only_new:
            text = text.removeprefix(self.tokenizer.decode(prompt))
        return escape(text)
