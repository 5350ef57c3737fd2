"""GenerationDefaults: special tokens and beam search options that are stored with a model."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GenerationDefaults:
    """Special tokens and options of beam search of a loaded model, in `model.generation_defaults`.

    `generate` and `beam_search` use the special tokens for arguments that are None. The options of
    beam search are those with which the model was evaluated. Only the command line uses these
    options. In Python, they must be passed to `beam_search`. A field is None if its value is
    unknown.

    Args:
        bos_id: First token of a decoder's input (`decoder_start_token_id` in transformers).
        eos_id: Token that ends a sequence.
        pad_id: Token that fills the columns after the end of a sequence.
        stop_ids: Further tokens that end a sequence.
        num_beams: Beam width; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_type: Formula of the penalty: gnmt, power or none.

    Example:
        >>> import torch, fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100).eval()
        >>> model.generation_defaults = GenerationDefaults(eos_id=2, pad_id=0)
        >>> fourfold.generate(model, torch.tensor([[5, 6]]), max_new=3).shape[0]
        1
    """

    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    length_penalty_type: str | None = None
    stop_ids: Sequence[int] | None = None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens that end a sequence: `eos_id`, then `stop_ids`."""
        return (*(() if self.eos_id is None else (self.eos_id,)), *(self.stop_ids or ()))
