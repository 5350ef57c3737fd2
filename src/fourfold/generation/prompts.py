"""What decoding starts from, checked before a model runs.

Shapes: B rows, T tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.generation.step import CausalModel, CausalStep, Seq2SeqModel, Seq2SeqStep, Step

EXTRA = 50  # how much longer than its source a target may get (Vaswani et al. 2017, 6.1)


@dataclass(frozen=True)
class Prompts:
    """Prompts of a causal LM, or sources of an encoder-decoder.

    Args:
        model: The model, whose config tells `vocab_size` and, if it has a limit, `max_len`.
        ids: (B, T) int64.
        mask: (B, T) bool, True = real token; None means all are.
        bos_id: What a target starts with.
        eos_id: What ends a row, if anything does.

    Raises:
        InputError: The model does not write text, or cannot read these prompts.
    """

    model: nn.Module
    ids: Tensor
    mask: Tensor | None
    bos_id: int
    eos_id: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.model, CausalModel | Seq2SeqModel):
            kind = type(self.model).__name__
            raise InputError(f"only a causal LM or an encoder-decoder writes text, not a {kind}")
        ids, mask = self.ids, self.mask
        if ids.ndim != 2 or ids.numel() == 0 or ids.dtype != torch.int64:
            raise InputError(f"ids must be int64 (rows, tokens), not {_describe(ids)}")
        if mask is not None and (mask.shape != ids.shape or mask.dtype != torch.bool):
            raise InputError(f"mask must be bool {tuple(ids.shape)}, not {_describe(mask)}")
        if int(self.lengths.min()) == 0:
            raise InputError(f"row {int(self.lengths.argmin())} has no real token")
        ends = {"bos_id": self.bos_id if self.is_seq2seq else None, "eos_id": self.eos_id}
        extremes = {"smallest id": int(ids.min()), "largest id": int(ids.max())}
        for name, value in (ends | extremes).items():
            if value is not None and not 0 <= value < self.vocab_size:
                words = f"a vocabulary of {self.vocab_size}"
                raise InputError(f"{name} is {value}, which is no token of {words}")
        if self.max_len is not None and int(self.lengths.max()) > self.max_len:
            row, longest = int(self.lengths.argmax()), int(self.lengths.max())
            raise InputError(
                f"row {row} has {longest} tokens, more than the model's max_len {self.max_len}"
            )

    @property
    def is_seq2seq(self) -> bool:
        """Whether the model writes a target, and does not go on with what it reads."""
        return isinstance(self.model, Seq2SeqModel)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    @property
    def max_len(self) -> int | None:
        return getattr(self.model.config, "max_len", None)

    @property
    def lengths(self) -> Tensor:
        """(B,) number of real tokens."""
        return self.real.sum(dim=1)

    @property
    def real(self) -> Tensor:
        """(B, T) bool, the mask or all True."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask

    def limit(self, name: str, wanted: int | None, least: int) -> Tensor:
        """(B,) most tokens to write: what is wanted, or else 50 more than each row has.

        Raises:
            InputError: The value of the argument `name` is below `least`, or beyond the model.
        """
        if wanted is not None and wanted < least:
            raise InputError(f"{name} is {wanted}, but must be at least {least}")
        limit = self.lengths + EXTRA if wanted is None else torch.full_like(self.lengths, wanted)
        if self.max_len is None:
            return limit
        taken = torch.ones_like(limit) if self.is_seq2seq else self.lengths
        room = self.max_len + 1 - taken  # the last token written is never read
        if wanted is not None and wanted > int(room.min()):
            raise InputError(
                f"{name} is {wanted}, but with max_len {self.max_len} the model can write no more "
                f"than {int(room.min())} tokens here"
            )
        return torch.minimum(limit, room)

    def start(self, use_cache: bool) -> tuple[Step, Tensor]:
        """The model as a step function, and the (B, T) or (B, 1) tokens to call it with first."""
        mask = self.mask
        if mask is not None and bool(mask.all()):
            mask = None  # without padding attention has faster kernels
        if isinstance(self.model, Seq2SeqModel):
            step = Seq2SeqStep(self.model, self.ids, mask, use_cache)
            return step, torch.full_like(self.ids[:, :1], self.bos_id)
        assert isinstance(self.model, CausalModel)
        return CausalStep(self.model, mask, use_cache), self.ids


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
