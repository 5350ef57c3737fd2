"""`translate`: sentences translated by beam search."""

from collections.abc import Sequence
from typing import Any, Unpack

from fourfold.generation.renamed import renamed
from fourfold.generation.text_model import Item, TextModel, check_model, check_penalty, run_batches
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import DecodingOptions


@renamed(n_best="num_return_sequences")
def translate(
    model: Model,
    lines: Sequence[str],
    *,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    length_penalty_type: str | None = None,
    max_new_tokens: int | None = None,
    suppress_tokens: Sequence[str] = (),
    truncate: bool = False,
    batch_size: int = 32,
    **decoding: Unpack[DecodingOptions],
) -> list[Any]:
    """Translate sentences as `fourfold translate` does.

    Options that are None are those of `fourfold.beam_search`: the stored ones of the model, if any.

    Args:
        model: Encoder-decoder of texts that `fourfold.load` returned.
        lines: The sentences.
        num_beams: Beam width; 1 is greedy search.
        length_penalty: Exponent of the length penalty.
        length_penalty_type: gnmt, power or none.
        max_new_tokens: Maximum number of tokens of a translation.
        suppress_tokens: Tokens that are never generated, as texts, such as "<unk>".
        truncate: Truncate sentences that are too long for the model, instead of raising an error.
        batch_size: Number of sentences in a batch.
        **decoding: `fourfold.generation.DecodingOptions`, such as `num_return_sequences` (N).

    Returns:
        One translation for each sentence, or with N > 1 a list of translations.

    Raises:
        InputError: The model does not translate texts, an option is invalid, or a sentence is too
            long for the model.
    """
    is_fit = model.can_generate and hasattr(model, "decode") and not model.accepts_images
    check_model(model, is_fit, "an encoder-decoder of texts")
    check_penalty(num_beams, length_penalty, length_penalty_type)
    text = TextModel(model, truncate=truncate, suppress_tokens=suppress_tokens)

    def prepare(line: str) -> Item:
        ids = text.source(line)
        return Item(ids, len(ids))

    def run(items: list[Item]) -> list[Any]:
        return text.targets(
            *text.pad([item.content for item in items]),
            num_beams=num_beams,
            length_penalty=length_penalty,
            length_penalty_type=length_penalty_type,
            max_new_tokens=max_new_tokens,
            **decoding,
        )

    return run_batches(lines, prepare, run, batch_size)
