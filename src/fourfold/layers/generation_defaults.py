"""GenerationDefaults and DecodingOptions: special tokens and options of decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from fourfold.core.validation import check_positive, check_types
from fourfold.errors import InputError

SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class GenerationDefaults:
    """Special tokens and options of decoding of a loaded model, in `model.generation_defaults`.

    `generate`, `beam_search` and the commands use them for arguments that are None. They come from
    the task that trained the model, or from generation_config.json of transformers.

    Args:
        bos_id: First token of a decoder's input (`decoder_start_token_id` in transformers).
        eos_id: Token that ends a sequence.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_type: Formula of the penalty: gnmt, power or none.
        stop_ids: Further tokens that end a sequence.
        temperature: Divisor of the logits in sampling; None means greedy search.
        top_k: Sample from the k most probable tokens only.
        top_p: Sample from the most probable tokens with this total probability only.
        min_p: Sample from the tokens with at least this fraction of the largest probability only.
        num_return_sequences: This field and the following ones are the `DecodingOptions`.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    length_penalty_type: str | None = None
    stop_ids: Sequence[int] | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    num_return_sequences: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    forced_bos_token_id: int | None = None

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens that end a sequence: `eos_id`, then `stop_ids`."""
        return (*(() if self.eos_id is None else (self.eos_id,)), *(self.stop_ids or ()))

    def n_results(self, options: "DecodingOptions", most: int) -> int:
        """Return the number of results of each input that is given, or stored, but at most `most`.

        Raises:
            InputError: The given number is not from 1 to `most`.
        """
        given = options.get("num_return_sequences")
        n = min(self.num_return_sequences or 1, most) if given is None else given
        check_positive("num_return_sequences", n)
        if n > most:
            message = f"needs a temperature above 0, or num_beams of that width, got {n}"
            raise InputError(message, option="num_return_sequences")
        return n


class DecodingOptions(TypedDict, total=False):
    """Further options of all decoding functions, with the names of transformers.

    An option that is absent or None is taken from `model.generation_defaults`. The tokens of a
    sequence are the prompt of a causal LM, or the start token of a target, and the new tokens.

    Args:
        num_return_sequences: Number N of samples, or of the best results of beam search, which has
            at least N beams; by default 1.
        repetition_penalty: Divisor of positive logits, and factor of negative logits, of the tokens
            that occur in the sequence (Keskar et al. 2019, section 4.1). Beam search with several
            beams applies it to log-probabilities. 1 has no effect.
        no_repeat_ngram_size: Size n of the n-grams that occur at most once in the sequence (Paulus
            et al. 2018, section 2.5); 0 has no effect.
        min_length: Number of tokens of the sequence before the token that ends it. It has no effect
            if `min_new_tokens` is given or stored.
        min_new_tokens: Number of new tokens before the token that ends the sequence.
        forced_bos_token_id: First new token of a sequence that has one token, such as the target
            language after the start token of a target.
    """

    num_return_sequences: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    min_length: int | None
    min_new_tokens: int | None
    forced_bos_token_id: int | None


class BeamOptions(DecodingOptions, total=False):
    """Options of the functions that read texts or images and write texts by beam search.

    An option that is absent or None is that of `fourfold.beam_search`: the stored one of the model,
    if any.

    Args:
        num_beams: Beam width; 1 is greedy search.
        length_penalty: Exponent of the length penalty.
        length_penalty_type: gnmt, power or none.
        max_new_tokens: Maximum number of tokens of a translation or caption; for captions, None
            means the longest caption of the training data.
    """

    num_beams: int | None
    length_penalty: float | None
    length_penalty_type: str | None
    max_new_tokens: int | None


def first_known(*values: Any) -> Any:
    """Return the first value that is not None, such as an argument before a stored default."""
    return next((value for value in values if value is not None), None)
