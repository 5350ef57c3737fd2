"""Base class of the views, which run the models of one family and build the data of a page.

The data of one example are a row of the page's document, a dictionary of JSON values (see
`fourfold.explorer.document`).

Shapes: L layers, T tokens, K classes, V vocabulary, C channels, H height, W width.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fourfold.analysis.hidden_states import logit_lens, text_stack
from fourfold.errors import InputError
from fourfold.explorer.inputs import (
    Example,
    Hypothesis,
    special_positions,
    token_texts,
    tokenizer_of,
    word_numbers,
)
from fourfold.explorer.maps import Collector, Kind
from fourfold.generation import beam_search
from fourfold.hub.preprocessing import default_class_names
from fourfold.layers.base_model import Model

N_ALTERNATIVES = 10  # most probable tokens that a step lists
N_CLASSES = 5  # most probable classes that a row lists

Row = dict[str, Any]


class View:
    """Base class of views, which run the models of one family and build the data of a page.

    `from_text`, `from_image` or `from_batch` converts inputs to examples. `complete` adds the
    tokens that the model generates to an example. `row` runs the model on the result, and returns
    the data that the page shows for the example.

    Args:
        model: The model, in eval mode.
        truncate: Shorten texts that are too long for the model.
        generate: Number of tokens that a causal LM generates.

    Attributes:
        family: Name of the model family, such as "causal_lm", which selects the layout of the page.
    """

    family: ClassVar[str]

    def __init__(self, model: Model, truncate: bool = False, generate: int = 20) -> None:
        self.model: Any = model
        self.truncate = truncate
        self.n_new = generate
        self.device = next(model.parameters()).device

    def from_text(self, text: str, target: str | None = None) -> Example:
        """Convert a text to an `Example`, an input of the page.

        Args:
            text: Input of the model, or source text of an encoder-decoder.
            target: Target text of an encoder-decoder; None if the model generates the text.

        Raises:
            InputError: The model reads no texts, or the text is too long.
        """
        raise InputError("must not be given: the model reads no texts", option="--text")

    def from_image(self, path: str) -> Example:
        """Convert an image file to an `Example`, an input of the page.

        Raises:
            InputError: The model reads no images, or the file is no image.
        """
        raise InputError("must not be given: the model reads no images", option="--image")

    def from_batch(self, batch: Any, dataset: Any) -> list[Example]:
        """Convert the rows of a batch of test data to inputs of the page.

        Args:
            batch: Batch of the DataModule (see `fourfold.data.loading.batches`).
            dataset: Dataset of the test split.
        """
        raise NotImplementedError

    def prepare(self, examples: Sequence[Example]) -> None:
        """Receive all examples of the page, before `row` is called for the first one.

        The base class ignores them, because most models process each example by itself.
        """

    def complete(self, example: Example) -> Example:
        """Return a copy of an example with the tokens that the model generates as `target`.

        The base class returns the example itself, because most models generate nothing.
        """
        return example

    def row(self, example: Example, collector: Collector, is_first: bool) -> Row:
        """Run the model on an example, and return the data that the page shows for the example.

        Args:
            example: Result of `complete`.
            collector: Collector to which the attention maps and the curves are added.
            is_first: True if the example is the first one of the page.

        Returns:
            A row of the page's document, without its fields `maps` and `curves`. This is a
            dictionary with the title, the tokens and the predictions.
        """
        raise NotImplementedError

    def tensor(self, ids: Any) -> Tensor:
        """Return T integers as an int64 tensor (1, T) on the device of the model."""
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)

    def tokens(self, **lists: Any) -> Row:
        """Return the fields of the page's data that describe the tokens of an example.

        Args:
            **lists: Token ids of each token list by the name of the list, such as `source`.

        Returns:
            A dictionary with three keys. Each value is a dictionary by the name of the list:
            `tokens` holds the text of each token, `words` the index of each token's word, and
            `special` the positions of special tokens.
        """
        tokenizer = tokenizer_of(self.model)
        return {
            "tokens": {name: token_texts(tokenizer, ids) for name, ids in lists.items()},
            "words": {name: word_numbers(tokenizer, ids) for name, ids in lists.items()},
            "special": {name: special_positions(tokenizer, ids) for name, ids in lists.items()},
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

        A token of `ids` that the model has to predict is called a target here.

        Args:
            logits: Logits (T, V).
            ids: Token ids of the sequence, which contains the targets.
            positions: Dictionary with an entry for each target. The key is the index of the target
                in `ids`. The value is the index of the row of `logits` that predicts the target.
            ranks: Rank (L, T) of the target after each layer (logit lens), where 0 is the most
                probable token. Column t belongs to row t of `logits`. None omits the ranks.
            kind: "generate" or "masked".
            **fields: Further fields of each step.

        Returns:
            A dictionary for each target, with the probability of the target, the entropy of the
            distribution in nats, the most probable tokens and the ranks.
        """
        tokenizer, steps = tokenizer_of(self.model), []
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

        Args:
            collector: Collector to which the maps and curves are added.
            kinds: Options of each kind of attention to collect, by the name of the kind.
            chosen: Token ids (1, T) whose ranks are computed. The rank of token t is its rank in
                row t of the logits.
            *inputs: Positional arguments of the model.
            **options: Keyword arguments of the model.

        Returns:
            The logits (T, V), and the rank (L, T) of each token in `chosen` after each layer (logit
            lens), where 0 is the most probable token. The ranks are None if the head of the model
            does not read a stack of transformer blocks.
        """
        outputs: list[Tensor] = []
        ranks: list[Tensor] = []

        def forward() -> None:
            outputs.append(self.model(*inputs, **options))

        def look() -> None:
            if text_stack(self.model) is None:
                forward()
            else:
                ranks.append(logit_lens(self.model, forward, chosen))

        collector.collect(self.model, look, kinds)
        return outputs[0][0], ranks[0][:, 0] if ranks else None

    def classes(
        self, logits: Tensor, names: Sequence[str] | None = None, *, are_independent: bool = False
    ) -> list[list[Any]]:
        """Return the field `classes` of the page's data, the most probable classes.

        Args:
            logits: Logits (K,).
            names: Name of each class; None means the names of the training data.
            are_independent: The probability of a class is the sigmoid of its logit, so that the
                probabilities do not add up to 1.

        Returns:
            List of at most `N_CLASSES` (5) pairs [name of the class, probability], the most
            probable class first. The list is empty for regression (K = 1).
        """
        if len(logits) < 2:
            return []
        names = names or self.class_names(logits)
        z = logits.detach().float()
        p = z.sigmoid() if are_independent else z.softmax(-1)
        values, best = p.topk(min(N_CLASSES, len(logits)))
        return [
            [names[i], short_number(p)] for i, p in zip(best.tolist(), values.tolist(), strict=True)
        ]

    def class_names(self, logits: Tensor) -> Sequence[str]:
        """Return the names of the K classes, those of the training data or default names.

        Args:
            logits: Logits (K,).
        """
        names: Sequence[str] | None = self.model.artifacts.get("class_names")
        return names or default_class_names(len(logits))

    def search(self, source: Tensor, **options: Any) -> list[Hypothesis]:
        """Generate target texts by beam search with the options stored in the checkpoint.

        Args:
            source: Source tokens (1, S), or an image (1, C, H, W).
            **options: Further arguments of `beam_search`.

        Returns:
            The finished hypotheses, the best one first, at most as many as beams. If the search
            finishes none, the list holds the best unfinished hypothesis.
        """
        defaults = self.model.generation_defaults
        names = {"num_beams": "beam", "length_penalty": "length_penalty"}
        names["length_penalty_type"] = "length_penalty_type"
        given = {to: getattr(defaults, name, None) for name, to in names.items()}
        given = {"beam": 1} | {name: x for name, x in given.items() if x is not None}
        given["eos_id"], found = self.end_ids, []
        ids, scores = beam_search(self.model, source, n_best=given["beam"], **given, **options)
        rows = ids.reshape(-1, ids.shape[-1])[:, 1:].tolist()
        for row, score in zip(rows, scores.flatten().tolist(), strict=True):
            if not set(self.end_ids).isdisjoint(row) and score > -math.inf:  # not padding
                found.append(Hypothesis(self.until_end(row), score))
        return found or [Hypothesis(rows[0], float(scores.flatten()[0]))]

    def beams(self, example: Example) -> list[list[Any]]:
        """Return the field `beams` of the page's data: the text and the score of each hypothesis.

        The list is empty if beam search did not generate the target, or has a single hypothesis.
        """
        decode = tokenizer_of(self.model).decode
        found = [[decode(one.ids), short_number(one.score)] for one in example.hypotheses]
        return found if len(found) > 1 else []

    @property
    def end_ids(self) -> Sequence[int]:
        """Ids of the tokens that end a text."""
        stored = getattr(self.model.generation_defaults, "end_ids", ())
        return stored or (tokenizer_of(self.model).eos_id,)

    def until_end(self, ids: list[int]) -> list[int]:
        """Return the ids up to and including the first end token, or all ids."""
        ends = self.end_ids
        return ids[: next((n for n, token in enumerate(ids, 1) if token in ends), len(ids))]

    @property
    def start_id(self) -> int:
        """Id of the token that the decoder reads first."""
        found = getattr(self.model.generation_defaults, "bos_id", None)
        return tokenizer_of(self.model).bos_id if found is None else int(found)


def short_number(value: float) -> float:
    """Return a number rounded to four significant digits."""
    return float(f"{value:.4g}")
