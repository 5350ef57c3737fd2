"""Views of models for text: language models, translation, classifiers and documents.

Shapes: T tokens, N sentences, K classes.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fourfold.explorer.inputs import Example, real_rows, short_title, token_texts
from fourfold.explorer.maps import Collector, Kind, short_number
from fourfold.explorer.views import Row, View
from fourfold.generation import generate
from fourfold.losses import IGNORE_INDEX

MAX_TOKENS = 128  # largest number of tokens of an example from test data


class CausalView(View):
    """View of a causal LM on a prompt and on the tokens that it generates after the prompt.

    `steps` of a row has the distribution that the model predicted for each generated token.
    """

    family = "causal_lm"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a prompt; an empty one is replaced by the end-of-document token."""
        tokenizer = self.reader.tokenizer
        ids = tokenizer.encode(text) or [tokenizer.eos_id]
        return Example(short_title(text), self.reader.truncate(ids, n_special=0))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a `CausalBatch`, whose first tokens, at most 64, are prompts."""
        limit = min(MAX_TOKENS, self.reader.max_len or MAX_TOKENS) // 2
        return [self.from_ids(row["ids"]) for row in real_rows(batch, limit)]

    def complete(self, example: Example) -> Example:
        """Generate the target by greedy search, up to the end token."""
        limit = self.reader.max_len
        n_new = self.n_new if limit is None else min(self.n_new, limit - len(example.ids))
        if n_new < 1:
            return example
        ids = generate(self.model, self.tensor(example.ids), max_new_tokens=n_new, temperature=0.0)
        return replace(example, target=self.until_end(ids[0, len(example.ids) :].tolist()))

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        n_prompt = len(example.ids)
        ids = [*example.ids, *(example.target or [])]
        batch = self.tensor(ids)
        kind = Kind("tokens", "tokens", ids=batch[0], rollout="rollout")
        logits, ranks = self.run(collector, {"self": kind}, batch.roll(-1, 1), batch)
        positions = {token: token - 1 for token in range(max(n_prompt, 1), len(ids))}
        steps = self.steps(logits, ids, positions, ranks, "generate", list="tokens")
        return {**self.tokens(tokens=ids), "steps": steps}


class MaskedView(View):
    """View of a masked LM; `steps` of a row has the predictions at masked positions."""

    family = "masked_lm"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text, in which [MASK] or <mask> is the mask token."""
        return Example(short_title(text), self.reader.masked(text)[0])

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a `MaskedBatch` with its masks and original tokens."""
        examples = []
        for row in real_rows(batch, MAX_TOKENS):
            truth = {i: t for i, t in enumerate(row["targets"] or []) if t != IGNORE_INDEX}
            whole = [truth.get(position, i) for position, i in enumerate(row["ids"])]
            title = short_title(self.reader.tokenizer.decode(whole))
            examples.append(Example(title, row["ids"], segments=row["segments"], truth=truth))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        ids, tokenizer = list(example.ids), self.reader.tokenizer
        positions = [i for i, token in enumerate(ids) if token == tokenizer.mask_id]
        positions = sorted({*positions, *example.truth})
        batch = self.tensor(ids)
        ends = batch[0] == tokenizer.eos_id
        kind = Kind("tokens", "tokens", ids=batch[0], separators=ends, rollout="rollout")
        segments = example.segments
        options = {} if segments is None else {"segments": self.tensor(segments)}
        fields = {"segments": example.segments}
        if not self.model.config.head:  # an encoder, such as that of sentence embeddings
            encode = partial(self.model.encode, batch, **options)
            collector.collect(self.model, encode, {"self": kind})
            return {**self.tokens(tokens=ids), **fields}
        with torch.no_grad():
            guess = self.model(batch, **options)[0].argmax(-1).tolist()
        guess = [example.truth.get(i, token) for i, token in enumerate(guess)]
        chosen = [guess[i] if i in positions else token for i, token in enumerate(ids)]
        logits, ranks = self.run(collector, {"self": kind}, self.tensor(chosen), batch, **options)
        places = {i: i for i in positions}
        steps = self.steps(logits, chosen, places, ranks, "masked", list="tokens")
        for step in steps:
            if step["token"] in example.truth:
                step["truth"] = step["chosen"]
        return {**self.tokens(tokens=ids), **fields, "steps": steps}


class TranslationView(View):
    """View of an encoder-decoder on a source text and a target text."""

    family = "translation"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a source text; the decoder reads `target` instead of its own, if it is given."""
        tokenizer, wanted = self.reader.tokenizer, None
        if target is not None:
            ids = self.reader.truncate(tokenizer.encode(target), n_special=1)
            wanted = [*ids, tokenizer.eos_id]
        return Example(short_title(text), self.reader.source(text), wanted)

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the source texts of a `PairBatch`; the model generates its own targets."""
        rows = zip(batch.src, batch.src_mask, strict=True)
        return [self.from_ids(ids[mask].tolist()) for ids, mask in rows]

    def complete(self, example: Example) -> Example:
        """Generate a missing target by beam search with the options of the checkpoint."""
        if example.target is not None:
            return example
        with torch.inference_mode():
            found = self.search(self.tensor(example.ids), bos_id=self.start_id)
        return replace(example, target=found[0].ids, hypotheses=found)

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        source, inputs = self.tensor(example.ids), self.decoder_inputs(example)
        ends = source[0] == self.reader.tokenizer.eos_id
        kinds = {
            "encoder": Kind("source", "source", ids=source[0], separators=ends, rollout="rollout"),
            "decoder": Kind("target", "inputs", ids=self.tensor(inputs)[0]),
            "cross": Kind("target", "source", separators=ends, is_self=False),
        }
        fields = self.decode(example, collector, kinds, source)
        fields |= self.tokens(source=example.ids, target=example.target or [], inputs=inputs)
        if collector.centers is not None:
            window = self.model.decoder.cross_attn.window
            fields["alignment"] = {"centers": collector.centers, "window": window}
        return fields


class ClassifierView(View):
    """View of a classifier of texts, pairs of texts or tokens.

    `classes` of a row is empty for a classifier of tokens or of answer spans.
    """

    family = "classification"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text, or two texts that a tab separates."""
        ids, first = self.reader.joined(text.split("\t")[:2])
        return Example(short_title(text), ids, segments=[int(i >= first) for i in range(len(ids))])

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a batch with the field `ids` (B, T)."""
        rows = real_rows(batch, MAX_TOKENS)
        return [self.from_ids(row["ids"], segments=row["segments"]) for row in rows]

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        ids = self.tensor(example.ids)
        ends = ids[0] == self.reader.tokenizer.eos_id
        kind = Kind("tokens", "tokens", ids=ids[0], separators=ends, rollout="rollout")

        def forward() -> Tensor:
            if hasattr(self.model, "classify"):  # on a causal LM
                return self.model.classify(self.model.hidden(ids))
            segments = example.segments if self.model.config.n_segments > 1 else None
            return self.model(ids, segments=None if segments is None else self.tensor(segments))

        output = collector.collect(self.model, forward, {"self": kind})
        classes = self.classes(output[0]) if output.ndim == 2 else []
        fields = {"classes": classes, "segments": example.segments}
        return {**self.tokens(tokens=example.ids), **fields}


class DocumentView(View):
    """View of a hierarchical attention network on a document.

    `text` of a row has the attention weights of the sentences and of their words.
    """

    family = "document"

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Divide a document into sentences, of which it has at least one."""
        return Example(short_title(text), sentences=self.reader.sentences(text))

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the documents of a `DocumentBatch`."""
        examples = []
        for own in batch.documents():
            title = short_title(self.reader.tokenizer.decode([i for row in own for i in row]))
            examples.append(Example(title, sentences=own))
        return examples

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        sizes = [len(row) for row in example.sentences]
        width = max(sizes)
        padded = [[*row, *[0] * (width - len(row))] for row in example.sentences]
        inputs = torch.tensor(padded, device=self.device), sizes, [len(sizes)]
        kinds = {"sentences.pool": Kind("document", "sentences", is_self=False)}
        if self.model.sentences is None:
            kinds = {"words.pool": Kind("document", "words", is_self=False)}
        logits = collector.collect(self.model, lambda: self.model(*inputs), kinds)[0]
        with torch.no_grad():
            words, sentences = self.model.weights(*inputs)
        tokenizer = self.reader.tokenizer
        names = [token_texts(tokenizer, row) for row in example.sentences]
        text = [
            {
                "weight": short_number(weight),
                "words": [[x, short_number(p)] for x, p in zip(row, of, strict=False)],
            }
            for row, of, weight in zip(names, words.tolist(), sentences[0].tolist(), strict=True)
        ]
        lists = {
            "document": ["document"],
            "sentences": [short_title(tokenizer.decode(row), 40) for row in example.sentences],
            "words": [word for row in names for word in row],
        }
        return {"tokens": lists, "text": {"sentences": text}, "classes": self.classes(logits)}
