"""Views of models for text: language models, translation, classifiers and documents.

Shapes: T tokens, N sentences, K classes.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.core.validation import MAX_SIZE
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.document_classification import encode_documents
from fourfold.data.text.segments import join_segments, n_special_tokens
from fourfold.errors import InputError
from fourfold.explorer.inputs import (
    Example,
    fit,
    longest_input,
    real_rows,
    short_title,
    token_texts,
    tokenizer_of,
)
from fourfold.explorer.maps import Collector, Kind
from fourfold.explorer.views import Row, View
from fourfold.generation import generate
from fourfold.losses import IGNORE_INDEX
from fourfold.models import CausalClassifier

MAX_TOKENS = 128  # largest number of tokens of an example from test data


class CausalView(View):
    """View of a causal LM, for a prompt and the tokens that the model generates after it."""

    family = "causal_lm"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a prompt.

        An empty prompt is replaced by the end-of-document token. `target` is ignored.
        """
        tokenizer = tokenizer_of(self.model)
        ids = tokenizer.encode(text) or [tokenizer.eos_id]
        return Example(short_title(text), fit(ids, longest_input(self.model), self.truncate))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return an example for each row of a `CausalBatch`, whose first tokens are the prompt."""
        decode = tokenizer_of(self.model).decode
        limit = min(MAX_TOKENS, longest_input(self.model) or MAX_TOKENS) // 2
        rows = [row["ids"] for row in real_rows(batch, limit)]
        return [Example(short_title(decode(ids)), ids) for ids in rows]

    def complete(self, example: Example) -> Example:
        """Return the example with the generated tokens (greedy search) as its target."""
        limit = longest_input(self.model)
        n_new = self.n_new if limit is None else min(self.n_new, limit - len(example.ids))
        if n_new < 1:
            return example
        tokenizer = tokenizer_of(self.model)
        ids = generate(
            self.model,
            self.tensor(example.ids),
            max_new=n_new,
            eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
        )
        new = ids[0, len(example.ids) :].tolist()
        end = new.index(tokenizer.eos_id) + 1 if tokenizer.eos_id in new else len(new)
        return replace(example, target=new[:end])

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model once on prompt and generated tokens, and return the row.

        Each generated token has a step with the distribution that the model predicted for it.
        """
        n_prompt = len(example.ids)
        ids = [*example.ids, *(example.target or [])]
        batch = self.tensor(ids)
        kind = Kind("tokens", "tokens", ids=batch[0], rollout="rollout")
        logits, ranks = self.run(collector, {"self": kind}, batch.roll(-1, 1), batch)
        positions = {token: token - 1 for token in range(max(n_prompt, 1), len(ids))}
        steps = self.steps(logits, ids, positions, ranks, "generate", list="tokens")
        return {**self.tokens(tokens=ids), "title": example.title, "steps": steps}


class MaskedView(View):
    """View of a masked LM, with the predictions at masked positions."""

    family = "masked_lm"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a text, in which [MASK] or <mask> stands for the mask token.

        `target` is ignored.

        Raises:
            InputError: The text is too long, or has masks although the tokenizer has no mask token.
        """
        tokenizer = tokenizer_of(self.model)
        mask = tokenizer.mask_id
        ids: list[int] = []
        pieces = text.replace("<mask>", "[MASK]").split("[MASK]")
        if len(pieces) > 1 and mask is None:
            raise InputError("has a tokenizer without a mask token", option="the checkpoint")
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            ids += tokenizer.encode(piece if is_last else piece.rstrip())
            ids += [] if is_last or mask is None else [mask]
        ids = fit(ids, longest_input(self.model), self.truncate, n_special=2)
        return Example(short_title(text), [tokenizer.bos_id, *ids, tokenizer.eos_id])

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return an example for each row of a `MaskedBatch`, with its masks and original tokens."""
        examples = []
        for row in real_rows(batch, MAX_TOKENS):
            truth = {i: t for i, t in enumerate(row["targets"] or []) if t != IGNORE_INDEX}
            whole = [truth.get(position, i) for position, i in enumerate(row["ids"])]
            title = short_title(tokenizer_of(self.model).decode(whole))
            examples.append(Example(title, row["ids"], segments=row["segments"], truth=truth))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on a text, and return the row with a step for each masked position."""
        ids, tokenizer = list(example.ids), tokenizer_of(self.model)
        positions = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
        positions = sorted({*positions, *example.truth})
        batch = self.tensor(ids)
        ends = batch[0] == tokenizer.eos_id
        kind = Kind("tokens", "tokens", ids=batch[0], separators=ends, rollout="rollout")
        options = {}
        if example.segments is not None:
            options["segments"] = self.tensor(example.segments)
        with torch.no_grad():
            guess = self.model(batch, **options)[0].argmax(-1).tolist()
        chosen = [
            example.truth.get(i, guess[i]) if i in positions else t for i, t in enumerate(ids)
        ]
        wanted = self.tensor(chosen)
        logits, ranks = self.run(collector, {"self": kind}, wanted, batch, **options)
        steps = self.steps(
            logits, chosen, {i: i for i in positions}, ranks, "masked", list="tokens"
        )
        for step in steps:
            if step["token"] in example.truth:
                step["truth"] = step["chosen"]
        return {**self.tokens(tokens=ids), "title": example.title, "steps": steps}


class TranslationView(View):
    """View of an encoder-decoder for texts, with the cross-attention from target to source."""

    family = "translation"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a source text.

        If `target` is given, the decoder reads this text instead of a text that it generates.
        """
        tokenizer = tokenizer_of(self.model)
        prefix = [] if tokenizer.prepended_id is None else [tokenizer.prepended_id]
        limit, end = longest_input(self.model), [tokenizer.eos_id]
        ids = fit(tokenizer.encode(text), limit, self.truncate, n_special=len(prefix) + 1)
        wanted = None
        if target is not None:
            wanted = fit(tokenizer.encode(target), limit, self.truncate, n_special=1) + end
        return Example(short_title(text), [*prefix, *ids, *end], wanted)

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return an example for each source text of a `PairBatch`, without its target text."""
        rows = [ids[mask].tolist() for ids, mask in zip(batch.src, batch.src_mask, strict=True)]
        decode = tokenizer_of(self.model).decode
        return [Example(short_title(decode(ids)), ids) for ids in rows]

    def complete(self, example: Example) -> Example:
        """Return the example with a target text.

        A missing target text is generated by beam search with the options of the checkpoint.
        """
        if example.target is not None:
            return example
        with torch.inference_mode():
            target = self.search(self.tensor(example.ids), bos_id=self.start_id)
        return replace(example, target=target)

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model once on source and target, and return the row.

        Row t of a map of the decoder holds the weights with which target token t is predicted.
        """
        source, target = self.tensor(example.ids), list(example.target or [])
        inputs = [self.start_id, *target[:-1]]
        ends = source[0] == tokenizer_of(self.model).eos_id
        kinds = {
            "encoder": Kind("source", "source", ids=source[0], separators=ends, rollout="rollout"),
            "decoder": Kind("target", "inputs", ids=self.tensor(inputs)[0]),
            "cross": Kind("target", "source", separators=ends, is_self=False),
        }
        chosen = self.tensor(target)
        logits, ranks = self.run(collector, kinds, chosen, source, self.tensor(inputs))
        positions = {i: i for i in range(len(target))}
        steps = self.steps(logits, target, positions, ranks, "generate", list="target")
        fields = self.tokens(source=example.ids, target=target, inputs=inputs)
        if collector.centers is not None:
            window = self.model.decoder.cross_attn.window
            fields["alignment"] = {"centers": collector.centers, "window": window}
        return {**fields, "title": example.title, "steps": steps}


class ClassifierView(View):
    """View of a classifier of texts, pairs of texts or tokens."""

    family = "classification"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a text, or of two texts that a tab separates.

        `target` is ignored.
        """
        texts, tokenizer = text.split("\t")[:2], tokenizer_of(self.model)
        encoded = [tokenizer.encode(part) for part in texts]
        separators = self.model.artifacts.get("n_separators", 1)
        n_tokens = sum(map(len, encoded)) + n_special_tokens(len(encoded), separators)
        limit = longest_input(self.model)
        kept = len(fit([0] * n_tokens, limit, self.truncate))
        columns = [RaggedArray(np.array(ids, np.int64), np.array([0, len(ids)])) for ids in encoded]
        rows, first = join_segments(columns, tokenizer, kept, separators)
        ids = rows[0].tolist()
        segments = [int(i >= first[0]) for i in range(len(ids))]
        return Example(short_title(text), ids, segments=segments)

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return an example for each text of a batch with the field `ids`."""
        decode = tokenizer_of(self.model).decode
        return [
            Example(short_title(decode(row["ids"])), row["ids"], segments=row["segments"])
            for row in real_rows(batch, MAX_TOKENS)
        ]

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on a text, and return the row with the most probable classes of the text.

        A classifier of tokens or of answer spans gets no classes.
        """
        ids = self.tensor(example.ids)
        ends = ids[0] == tokenizer_of(self.model).eos_id
        kind = Kind("tokens", "tokens", ids=ids[0], separators=ends, rollout="rollout")
        outputs: list[Tensor] = []

        def forward() -> None:
            if isinstance(self.model, CausalClassifier):
                outputs.append(self.model.classify(self.model.hidden(ids)))
            else:
                segments = example.segments if self.model.config.n_segments > 1 else None
                known = None if segments is None else self.tensor(segments)
                outputs.append(self.model(ids, known))

        collector.collect(self.model, forward, {"self": kind})
        classes = self.classes(outputs[0][0]) if outputs[0].ndim == 2 else []
        return {**self.tokens(tokens=example.ids), "title": example.title, "classes": classes}


class DocumentView(View):
    """View of a hierarchical attention network, with the weights of sentences and words."""

    family = "document"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Return the example of a document, which is divided into sentences.

        `target` is ignored.

        Raises:
            InputError: The document has no sentence, or more sentences than the model reads.
        """
        tokenizer, limit = tokenizer_of(self.model), self.model.config.max_sentences
        found = encode_documents([text], tokenizer, longest_input(self.model) or MAX_SIZE)
        if len(found) == 0:
            raise InputError("must have at least one sentence, got none", option="the text")
        rows = [found.ids[i].tolist() for i in range(len(found))]
        if len(rows) > limit and not self.truncate:
            problem = f"has {len(rows)} sentences, but the model reads {limit}"
            raise InputError(f"{problem}; --truncate shortens it", option="the text")
        return Example(short_title(text), sentences=rows[:limit])

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Return an example for each document of a `DocumentBatch`."""
        sizes = zip(batch.ids.tolist(), batch.n_words, strict=True)
        sentences, examples = [row[:size] for row, size in sizes], []
        for count in batch.n_sentences:
            own, sentences = sentences[:count], sentences[count:]
            title = short_title(tokenizer_of(self.model).decode([i for row in own for i in row]))
            examples.append(Example(title, sentences=own))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on a document, and return the row with the most probable classes.

        The field `text` of the row holds the weights of the sentences and of their words.
        """
        sizes = [len(row) for row in example.sentences]
        width = max(sizes)
        padded = [[*row, *[0] * (width - len(row))] for row in example.sentences]
        inputs = torch.tensor(padded, device=self.device), sizes, [len(sizes)]
        outputs: list[Tensor] = []
        kinds = {"sentences.pool": Kind("document", "sentences", is_self=False)}
        if self.model.sentences is None:
            kinds = {"words.pool": Kind("document", "words", is_self=False)}
        collector.collect(self.model, lambda: outputs.append(self.model(*inputs)), kinds)
        with torch.no_grad():
            words, sentences = self.model.weights(*inputs)
        tokenizer = tokenizer_of(self.model)
        names = [token_texts(tokenizer, row) for row in example.sentences]
        text = [
            {
                "weight": float(f"{float(weight):.4g}"),
                "words": [[x, float(f"{p:.4g}")] for x, p in zip(row, of, strict=False)],
            }
            for row, of, weight in zip(names, words.tolist(), sentences[0].tolist(), strict=True)
        ]
        lists = {
            "document": ["document"],
            "sentences": [short_title(tokenizer.decode(row), 40) for row in example.sentences],
            "words": [word for row in names for word in row],
        }
        classes = self.classes(outputs[0][0])
        found = {"sentences": text}
        return {"title": example.title, "tokens": lists, "classes": classes, "text": found}
