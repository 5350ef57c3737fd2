"""GenerationDefaults: special tokens and options of decoding that are stored with a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fourfold.core.validation import check_types


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

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens that end a sequence: `eos_id`, then `stop_ids`."""
        return (*(() if self.eos_id is None else (self.eos_id,)), *(self.stop_ids or ()))


def first_known(*values: Any) -> Any:
    """Return the first value that is not None, such as an argument before a stored default."""
    return next((value for value in values if value is not None), None)
