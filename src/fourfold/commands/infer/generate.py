"""`generate_text`: prompts continued greedily, by sampling or by beam search.

Shapes: B prompts of a batch, N continuations per prompt, T tokens of the longest prompt, t new
tokens.
"""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from fourfold.core.validation import MAX_SIZE, check_positive
from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults, generate, text_model
from fourfold.generation.inputs import MAX_CONTINUATION
from fourfold.generation.renamed import renamed
from fourfold.generation.text_model import Item, TextModel
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import SAMPLING, DecodingOptions, first_known
from fourfold.tokenization.chat import ChatTemplate
from fourfold.tokenization.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"  # decoded from a token that is a part of a character


@renamed(n_best="num_return_sequences")
def generate_text(
    model: Model,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    length_penalty_type: str | None = None,
    stop: Sequence[str] = (),
    suppress_tokens: Sequence[str] = (),
    document_start: bool = False,
    chat: bool = False,
    only_new: bool = False,
    truncate: bool = False,
    batch_size: int = 32,
    stream: Callable[[str], None] | None = None,
    copies: Counter[tuple[int, ...]] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> list[Any]:
    """Continue prompts, or answer conversations, as `fourfold generate` does.

    If none of `temperature` and `num_beams` is given, the stored options of the model are used:
    sampling, otherwise beam search, otherwise greedy search. Options that are not described here
    are those of `fourfold.generate` and `fourfold.beam_search`.

    Args:
        model: Causal LM that `fourfold.load` returned.
        prompts: Texts; with `chat`, messages of a user or lists of messages (dictionaries with the
            keys role and content).
        max_new_tokens: Maximum number of new tokens; None means the stored number or 50, but at
            most what the model can read.
        stop: Texts that end a continuation, and do not belong to it.
        suppress_tokens: Tokens that are never generated, as texts, such as "<unk>".
        document_start: Put the end-of-document token, which precedes documents, before a prompt.
        chat: Use the chat template of the model; implies `only_new`.
        only_new: Return the continuations without the prompts.
        truncate: Remove the beginning of prompts that are too long, instead of raising an error.
        batch_size: Number of prompts in a batch.
        stream: Function that is called with each piece of the answer to a single prompt as soon as
            it is generated, such as `print`.
        **decoding: `fourfold.generation.DecodingOptions`, such as `num_return_sequences` (N).

    Returns:
        One text for each prompt, or with N > 1 a list of texts.

    Raises:
        InputError: The model is not a causal LM, an option is invalid or has no effect, or a prompt
            is too long for the model.
    """
    continuer = _Continuer(model, len(prompts), Namespace(**locals()))
    return text_model.run_batches(prompts, continuer.prepare, continuer.run, batch_size)


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

        A character that is not complete, and a text with which a stop text begins, are withheld
        unless `is_last`.
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


class _Continuer(TextModel):
    """Causal LM with the options of `generate_text`."""

    def __init__(self, model: Model, n_prompts: int, options: Namespace) -> None:
        is_causal = model.can_generate and not hasattr(model, "decode")
        text_model.check_model(model, is_causal, "a causal LM")
        super().__init__(model, truncate=options.truncate, suppress_tokens=options.suppress_tokens)
        self.options = options
        names = ("length_penalty", "length_penalty_type")
        self.penalty: Any = {name: vars(options)[name] for name in names}
        # Number of times that each prompt was read, so that a repeated prompt is sampled anew.
        self.copies = Counter() if options.copies is None else options.copies
        self.stored = stored = model.generation_defaults or GenerationDefaults()
        temperature = options.temperature
        if temperature is None and (options.num_beams or 1) == 1:
            temperature = stored.temperature
        self.samples = bool(temperature)
        self.num_beams: int = options.num_beams or 1
        if options.num_beams is None and not self.samples and options.temperature is None:
            self.num_beams = stored.num_beams or 1
        self.n = stored.n_results(options.decoding, MAX_SIZE if self.samples else self.num_beams)
        self._check_options(n_prompts)
        self.chat = self._chat_template() if options.chat else None

    def _check_options(self, n_prompts: int) -> None:
        """Raise InputError if an option is out of range, or has no effect beside another one."""
        options, beams = self.options, self.num_beams
        check_positive("max_new_tokens", options.max_new_tokens, self.max_len or MAX_SIZE)
        if self.samples and beams > 1:
            raise InputError("cannot be combined with num_beams", option="temperature")
        for name in ("top_k", "top_p", "min_p", "seed"):
            if vars(options)[name] is not None and not self.samples:
                raise InputError("needs a temperature above 0, such as 1", option=name)
        if options.stream and (beams > 1 or self.n > 1 or n_prompts > 1):
            message = "needs a single prompt, num_beams 1 and num_return_sequences 1"
            raise InputError(message, option="stream")
        if options.chat and options.document_start:
            raise InputError("cannot be combined with chat", option="document_start")
        text_model.check_penalty(num_beams=beams, **self.penalty)

    def _chat_template(self) -> ChatTemplate:
        description = self.model.artifacts.get("chat_template")
        if description is None:
            message = "needs a chat template, which tokenizer_config.json of the model lacks"
            raise InputError(message, option="chat")
        return ChatTemplate(dict(description))

    def _encode(self, prompt: Any) -> list[int]:
        if self.chat is not None:
            messages = read_messages(prompt) if isinstance(prompt, str) else list(prompt)
            return self.chat.encode(messages, self.tokenizer)
        ids = self.tokenizer.encode(prompt)
        if self.tokenizer.prepended_id is not None:
            ids = [self.tokenizer.prepended_id, *ids]
        if self.options.document_start or not ids:
            ids = [self.tokenizer.eos_id, *ids]  # precedes every document in training
        return ids

    def prepare(self, prompt: Any) -> Item:
        """Return an item with the pair (token ids, maximum number of new tokens) as content."""
        ids, given = self._encode(prompt), self.options.max_new_tokens
        max_new: int = first_known(given, self.stored.max_new_tokens, MAX_CONTINUATION)
        if self.max_len is not None:
            # The model does not read the last new token, which therefore needs no position.
            limit = self.max_len + 1 - (given or 1)
            if len(ids) > limit and not self.truncates:
                message = f"has {len(ids)} tokens, but only {limit} leave space for new tokens in"
                message += " the model; --truncate (in Python: truncate=True) removes the beginning"
                raise InputError(message, option="the prompt")
            ids = ids[-limit:]
            max_new = min(max_new, self.max_len + 1 - len(ids))
        # Padding would change the state of an LSTM, so its batches have prompts of one length.
        group = len(ids) if self.model.is_recurrent else max_new
        return Item((ids, max_new), len(ids), group)

    def run(self, items: list[Item]) -> list[Any]:
        """Return the text of each prompt, or with N > 1 a list of texts."""
        options = self.options
        prompts = [item.content[0] for item in items]
        ids, mask = self.pad(prompts)
        repeated = (prompt for prompt in prompts for _ in range(self.n))
        texts = [GrowingText(self.tokenizer, prompt, options.stop) for prompt in repeated]
        hides_prompt = options.only_new or options.chat
        if options.stream and not hides_prompt:
            options.stream(texts[0].prompt)
        self._generate(ids, mask, items[0].content[1], texts)
        if options.stream:
            options.stream(texts[0].unshown(is_last=True))
        answers = [text.result if hides_prompt else text.prompt + text.result for text in texts]
        rows = range(0, len(answers), self.n)
        return text_model.one_or_all([answers[start : start + self.n] for start in rows], self.n)

    def _generate(
        self, ids: Tensor, mask: Tensor, max_new: int, texts: Sequence[GrowingText]
    ) -> None:
        """Continue B prompts N times each, and append the tokens to the texts (B * N)."""
        options = self.options
        both = {**options.decoding, "max_new_tokens": max_new, "num_return_sequences": self.n}

        def append(rows: Tensor, tokens: Tensor) -> Tensor:
            pairs = zip(rows.tolist(), tokens.tolist(), strict=True)
            ends = torch.tensor([texts[row].add([token]) for row, token in pairs])
            if options.stream:
                options.stream(texts[0].unshown())
            return ends

        if self.num_beams > 1:
            search = {"num_beams": self.num_beams, **self.penalty, **both}
            new = self.beam_search(ids, mask, **search)[:, :, ids.shape[1] :].flatten(0, 1).tolist()
            for text, tokens in zip(texts, new, strict=True):
                text.add(tokens)
            return
        generate(
            self.model,
            ids,
            mask=mask,
            pad_id=self.tokenizer.pad_id,
            suppress_tokens=self.suppressed,
            copies=self.copies,
            on_tokens=append,
            **both,
            **{name: vars(options)[name] for name in (*SAMPLING, "seed")},
        )
