"""Line processor of `fourfold generate`: prompts continued greedily, by sampling or beam search.

Shapes: B lines of a batch, N continuations per line, T tokens of the longest prompt, t new tokens.
"""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.commands.infer.base import TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError
from fourfold.generation import generate
from fourfold.tokenization.chat import ChatTemplate
from fourfold.tokenization.tokenizer import Tokenizer

DEFAULT_MAX_NEW = 50  # tokens
_INCOMPLETE = "\ufffd"  # decoded from a token that is a part of a character


class GrowingText:
    """Text of one prompt and its continuation, which grows by one token at a time.

    Args:
        tokenizer: Tokenizer of the model.
        prompt: Token ids of the prompt.
        stops: Texts that end the continuation, and do not belong to it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        self._stops = stops
        self.prompt = tokenizer.decode(self._ids)
        self._n_shown = 0

    def add(self, tokens: Sequence[int]) -> bool:
        """Append tokens, and return True if the continuation now contains a stop text."""
        self._ids += tokens
        return any(stop in self.new for stop in self._stops)

    @property
    def new(self) -> str:
        """Continuation with the stop text and all after it."""
        # Decoded together with the prompt, on which the spaces between tokens depend.
        return self._tokenizer.decode(self._ids).removeprefix(self.prompt)

    @property
    def result(self) -> str:
        """Continuation, which ends before the first stop text."""
        new = self.new
        return new[: min((new.index(stop) for stop in self._stops if stop in new), default=None)]

    def unshown(self, *, is_last: bool = False) -> str:
        """Return the continuation beyond the texts that earlier calls returned.

        Args:
            is_last: Do not withhold a character that is not complete, or a text with which a stop
                text begins.
        """
        text = self.result
        if not is_last:
            text = text.rstrip(_INCOMPLETE)
            starts = (stop[:n] for stop in self._stops for n in range(1, len(stop)))
            held = max((len(start) for start in starts if text.endswith(start)), default=0)
            text = text[: len(text) - held]
        piece = text[self._n_shown :]
        self._n_shown = max(self._n_shown, len(text))
        return piece


def read_messages(line: str) -> list[Any]:
    """Return the messages of a line for `--chat`.

    The line is a JSON list of messages with the keys role and content, or otherwise the text of one
    message of the user.
    """
    try:
        messages = json.loads(line) if line.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        messages = None
    found = messages if isinstance(messages, list) else []
    is_valid = all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in found)
    return found if found and is_valid else [{"role": "user", "content": line}]


class PromptContinuer(TextProcessor):
    """Line processor that continues one prompt per line, or answers one conversation per line.

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
        self.chat = self._chat_template() if options.chat else None
        if self.chat is not None and not self.defaults.end_ids and self.chat.eos_token is not None:
            end = self.tokenizer.vocabulary.get(self.chat.eos_token)
            self.end_ids = self.end_ids if end is None else (end,)
        # Number of times that each prompt was read, so that a repeated prompt is sampled anew.
        self.copies: Counter[tuple[int, ...]] = Counter()

    def _chat_template(self) -> ChatTemplate:
        """Return the chat template of the checkpoint; raise InputError if there is none."""
        description = self.task.artifacts.get("chat_template")
        if description is None:
            message = "needs a chat template, which tokenizer_config.json of the model lacks"
            raise InputError(message, option="--chat")
        return ChatTemplate(description)

    def _encode(self, line: str) -> list[int]:
        """Return the token ids of a prompt, or of a conversation if `--chat` is given."""
        if self.chat is not None:
            return self.chat.encode(read_messages(line), self.tokenizer)
        ids = self.tokenizer.encode(line)
        if self.tokenizer.prepended_id is not None:
            ids = [self.tokenizer.prepended_id, *ids]
        if self.options.document_start or not ids:
            ids = [self.tokenizer.eos_id, *ids]  # precedes every document in training
        return ids

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (token ids, maximum number of new tokens) as content.

        `--truncate` removes tokens at the beginning of a prompt that is too long.

        Raises:
            InputError: The prompt is too long, and `--truncate` is not given.
        """
        ids = self._encode(line)
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

        Each continuation follows a copy of the prompt, unless `--only-new` is given. With
        `--stream`, the only continuation is written as it is generated, and "" is returned.
        """
        prompts = [item.content[0] for item in items]
        ids, mask = self.pad(prompts)
        n_best, stops = self.options.n_best, self.options.stop
        texts = [GrowingText(self.tokenizer, p, stops) for p in prompts for _ in range(n_best)]
        if self.options.stream and not self.options.only_new:
            self._show(texts[0].prompt)
        new = self._generate(ids, mask, items[0].content[1], texts)[:, :, ids.shape[1] :]
        if self.options.stream:
            self._show(texts[0].unshown(is_last=True))
            return [""]
        if (self.options.beam or 1) > 1:
            for text, tokens in zip(texts, new.flatten(0, 1).tolist(), strict=True):
                text.add(tokens)
        answers = [
            escape(text.result if self.options.only_new else text.prompt + text.result)
            for text in texts
        ]
        rows = range(0, len(answers), n_best)
        return ["\t".join(answers[start : start + n_best]) for start in rows]

    def _show(self, text: str) -> None:
        print(escape(text), end="", flush=True, file=sys.stdout)

    def _generate(
        self, ids: Tensor, mask: Tensor, max_new: int, texts: Sequence[GrowingText]
    ) -> Tensor:
        """Continue prompts N times each, and return the prompts with their continuations.

        N is the value of `--n-best`.

        Args:
            ids: Token ids of the prompts (B, T).
            mask: Mask (B, T), True for real tokens.
            max_new: Maximum number of new tokens.
            texts: Texts (B * N) that the new tokens are appended to, except in beam search.

        Returns:
            Token ids (B, N, T + t), for t new tokens.
        """
        options = self.options

        def append(rows: Tensor, tokens: Tensor) -> Tensor:
            pairs = zip(rows.tolist(), tokens.tolist(), strict=True)
            ends = torch.tensor([texts[row].add([token]) for row, token in pairs])
            if options.stream:
                self._show(texts[0].unshown())
            return ends

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
            eos_id=self.end_ids,
            pad_id=self.tokenizer.pad_id,
            suppress_tokens=self.suppressed,
            copies=self.copies,
            on_tokens=append,
        )
        return output.reshape(len(ids), options.n_best, -1)
