"""Base class of the views, which run the models of one family and build the data of a page.

The data of one example are a row of the page's document (see `fourfold.explorer.document`).

Shapes: L layers, T tokens, K classes, V vocabulary, C channels, H height, W width.
"""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fourfold.analysis.hidden_states import logit_lens, text_stack
from fourfold.errors import InputError
from fourfold.explorer.inputs import (
    Example,
    Hypothesis,
    short_title,
    token_texts,
    word_numbers,
)
from fourfold.explorer.maps import Collector, Kind, short_number
from fourfold.generation import beam_search
from fourfold.generation.text_model import TextModel
from fourfold.hub.preprocessing import default_class_names
from fourfold.layers.base_model import Model
from fourfold.losses import probabilities

N_ALTERNATIVES = 10  # most probable tokens that a step lists
N_CLASSES = 5  # most probable classes that a row lists

Row = dict[str, Any]


class View:
    """Base class of views, which run the models of one family and build the data of a page.

    `from_text`, `from_image` or `from_batch` converts inputs to examples. `complete` adds the
    tokens that the model generates. `row` runs the model, and returns the data of the page.

    Args:
        model: The model, in eval mode.
        truncate: Shorten texts that are too long for the model.
        generate: Number of tokens that a causal LM generates.
    """

    family: ClassVar[str]  # such as "causal_lm"; selects the layout of the page

    def __init__(self, model: Model, truncate: bool = False, generate: int = 20) -> None:
        self.model: Any = model
        self.truncate = truncate
        self.n_new = generate
        self.device = model.device

    @cached_property
    def reader(self) -> TextModel:
        """Tokenizer of the model, and its limits of texts."""
        return TextModel(self.model, truncate=self.truncate)

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text, and the target of an encoder-decoder, to an input of the page.

        Raises:
            InputError: The model reads no texts, or the text is too long.
        """
        raise InputError("must not be given: the model reads no texts", option="--text")

    def from_image(self, path: str) -> Example:
        """Convert an image file to an input of the page.

        Raises:
            InputError: The model reads no images, or the file is no image.
        """
        raise InputError("must not be given: the model reads no images", option="--image")

    def from_ids(self, ids: Sequence[int], **fields: Any) -> Example:
        """Make an input of token ids, which has their text as its title."""
        return Example(short_title(self.reader.tokenizer.decode(ids)), ids, **fields)

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a batch of a dataset to inputs of the page."""
        raise NotImplementedError

    def prepare(self, examples: Sequence[Example]) -> None:
        """Receive all examples of the page, before `row` is called for the first one."""

    def complete(self, example: Example) -> Example:
        """Return an example with the tokens that the model generates, if any, as `target`."""
        return example

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on a result of `complete`, and return its row of the page's document.

        The row lacks the fields `maps` and `curves`, which the collector holds. `is_first` is True
        for the first example of the page.
        """
        raise NotImplementedError

    def tensor(self, ids: Any) -> Tensor:
        """Return T integers as an int64 tensor (1, T) on the device of the model."""
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)

    def tokens(self, **lists: Any) -> Row:
        """Return the fields that describe the tokens of an example, from ids by token list.

        `tokens` holds the text of each token, `words` the index of each token's word, and `special`
        the positions of special tokens other than the mask token.
        """
        tokenizer = self.reader.tokenizer
        hidden = set(tokenizer.special_ids) - {tokenizer.mask_id}
        return {
            "tokens": {name: token_texts(tokenizer, ids) for name, ids in lists.items()},
            "words": {name: word_numbers(tokenizer, ids) for name, ids in lists.items()},
            "special": {
                k: [i for i, x in enumerate(ids) if x in hidden] for k, ids in lists.items()
            },
        }

    def steps(
        self,
        logits: Tensor,
        ids: list[int],
        positions: dict[int, int],
        ranks: Tensor | None,
        kind: str,
        **fields: Any,
    ) -> list[Row]:
        """Return the field `steps` of the page's data, the model's predictions for some tokens.

        Args:
            logits: Logits (T, V).
            ids: Token ids of the sequence, which contains the predicted tokens.
            positions: For the index of each predicted token in `ids`, the row of `logits`.
            ranks: Rank (L, T) of the token after each layer (logit lens), 0 for the most probable
                one; None omits the ranks.
            kind: "generate" or "masked".
            **fields: Further fields of each step.
        """
        tokenizer, steps = self.reader.tokenizer, []
        for token, query in positions.items():
            p = logits[query].float().softmax(-1)
            values, best = p.topk(min(N_ALTERNATIVES, len(p)))
            names = token_texts(tokenizer, best.tolist())
            step = {
                "kind": kind,
                "token": token,
                "query": query,
                "chosen": token_texts(tokenizer, [ids[token]])[0],
                "probability": short_number(float(p[ids[token]])),
                "entropy": short_number(float(torch.special.entr(p).sum())),
                "top": [[n, short_number(v)] for n, v in zip(names, values.tolist(), strict=True)],
                "lens": [] if ranks is None else ranks[:, query].tolist(),
            }
            steps.append({**step, **fields})
        return steps

    def run(
        self,
        collector: Collector,
        kinds: dict[str, Kind],
        chosen: Tensor,
        *inputs: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model once on one sequence, and collect its attention maps.

        Returns the logits (T, V), and the rank (L, T) of token t of `chosen` (1, T) in row t of the
        logits after each layer (logit lens). The ranks are None if the head of the model does not
        read a stack of transformer blocks.
        """
        outputs: list[Tensor] = []

        def forward() -> None:
            outputs.append(self.model(*inputs, **options))

        lens: Any = partial(logit_lens, self.model, forward, chosen)
        has_lens = text_stack(self.model) is not None
        ranks = collector.collect(self.model, lens if has_lens else forward, kinds)
        return outputs[0][0], None if ranks is None else ranks[:, 0]

    def decode(self, example: Example, collector: Collector, kinds: dict[str, Kind], x: Any) -> Row:
        """Run an encoder-decoder on a source `x` and the target; return the predictions.

        Row t of an attention map of the decoder holds the weights that predict target token t.
        """
        target = list(example.target or [])
        inputs = self.tensor(self.decoder_inputs(example))
        logits, ranks = self.run(collector, kinds, self.tensor(target), x, inputs)
        positions = {i: i for i in range(len(target))}
        steps = self.steps(logits, target, positions, ranks, "generate", list="target")
        return {"steps": steps, "beams": self.beams(example)}

    def decoder_inputs(self, example: Example) -> list[int]:
        """Return the ids that the decoder reads: start token, and target without its end."""
        return [self.start_id, *list(example.target or [])[:-1]]

    def classes(
        self, logits: Tensor, names: Sequence[str] | None = None, *, are_independent: bool = False
    ) -> list[list[Any]]:
        """Return the field `classes`: pairs of name and probability, the most probable first.

        Args:
            logits: Logits (K,); the list is empty for regression (K = 1).
            names: Name of each class; None means the names of the training data.
            are_independent: The probability of a class is the sigmoid of its logit.
        """
        if len(logits) < 2:
            return []
        names = names or self.class_names(logits)
        several = are_independent or self.model.artifacts.get("multi_label", False)
        p = probabilities(logits.detach(), several)
        values, best = p.topk(min(N_CLASSES, len(logits)))
        return [
            [names[i], short_number(p)] for i, p in zip(best.tolist(), values.tolist(), strict=True)
        ]

    def class_names(self, logits: Tensor) -> Sequence[str]:
        """Return the names of the K classes, those of the training data or default names."""
        return self.model.artifacts.get("class_names") or default_class_names(len(logits))

    def search(self, source: Tensor, **options: Any) -> list[Hypothesis]:
        """Generate texts by beam search with the options stored in the checkpoint.

        Returns the finished hypotheses, the best one first, or the best unfinished hypothesis. The
        source is tokens (1, S) or an image (1, C, H, W).
        """
        num_beams = getattr(self.model.generation_defaults, "num_beams", None) or 1
        found: list[Hypothesis] = []
        options["num_return_sequences"] = num_beams
        ids, scores = beam_search(self.model, source, num_beams, **options)
        rows = ids.reshape(-1, ids.shape[-1])[:, 1:].tolist()
        for row, score in zip(rows, scores.flatten().tolist(), strict=True):
            if not set(self.end_ids).isdisjoint(row) and score > -math.inf:  # not padding
                found.append(Hypothesis(self.until_end(row), score))
        return found or [Hypothesis(rows[0], float(scores.flatten()[0]))]

    def beams(self, example: Example) -> list[list[Any]]:
        """Return the field `beams`: text and score of each hypothesis, if there are several."""
        decode = self.reader.tokenizer.decode
        found = [[decode(one.ids), short_number(one.score)] for one in example.hypotheses]
        return found if len(found) > 1 else []

    @property
    def end_ids(self) -> Sequence[int]:
        """Ids of the tokens that end a text."""
        stored = getattr(self.model.generation_defaults, "end_ids", ())
        return stored or (self.reader.tokenizer.eos_id,)

    def until_end(self, ids: list[int]) -> list[int]:
        """Return the ids up to and including the first end token, or all ids."""
        ends = self.end_ids
        return ids[: next((n for n, token in enumerate(ids, 1) if token in ends), len(ids))]

    @property
    def start_id(self) -> int:
        """Id of the token that the decoder reads first."""
        found = getattr(self.model.generation_defaults, "bos_id", None)
        return self.reader.tokenizer.bos_id if found is None else int(found)
