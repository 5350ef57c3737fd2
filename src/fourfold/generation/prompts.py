"""What decoding starts from, checked before a model runs.

Shapes: B rows, T tokens, C channels.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.cache import KVCache
from fourfold.core.errors import InputError
from fourfold.generation.step import CausalModel, CausalStep, Seq2SeqModel, Seq2SeqStep, Step

EXTRA = 50  # how much longer than its source a target may get (Vaswani et al. 2017, 6.1)


@dataclass(frozen=True)
class Prompts:
    """Prompts of a causal LM, or sources of an encoder-decoder, which may be images.

    Args:
        model: The model, whose config tells `vocab_size` and, if it has a limit, `max_len`; what
            reads a source may have a config of its own, `encoder`.
        ids: (B, T) int64, or images (B, C, side, side).
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
        self._check_images() if self.reads_images else self._check_ids()
        ends = {"bos_id": self.bos_id if self.is_seq2seq else None, "eos_id": self.eos_id}
        for name, value in ends.items():
            self._check_token(name, value, self.vocab_size)

    def _check_images(self) -> None:
        ids = self.ids
        if ids.ndim != 4 or ids.numel() == 0 or not ids.is_floating_point():
            raise InputError(
                f"images must be float (rows, channels, side, side), not {_describe(ids)}"
            )
        if self.mask is not None:
            raise InputError("images have no mask: every patch is real")

    def _check_ids(self) -> None:
        ids, mask = self.ids, self.mask
        if ids.ndim != 2 or ids.numel() == 0 or ids.dtype != torch.int64:
            raise InputError(f"ids must be int64 (rows, tokens), not {_describe(ids)}")
        if mask is not None and (mask.shape != ids.shape or mask.dtype != torch.bool):
            raise InputError(f"mask must be bool {tuple(ids.shape)}, not {_describe(mask)}")
        if self.is_recurrent and not bool(self.real.all()):
            raise InputError("padding changes an LSTM's state: give it prompts of one length")
        if int(self.lengths.min()) == 0:
            raise InputError(f"row {int(self.lengths.argmin())} has no real token")
        reader: Any = self.model.config
        reader = getattr(reader, "encoder", reader)
        for name, value in (("smallest id", int(ids.min())), ("largest id", int(ids.max()))):
            self._check_token(name, value, reader.vocab_size or self.vocab_size)
        limit = getattr(reader, "max_len", None)
        if limit is not None and int(self.lengths.max()) > limit:
            row, longest = int(self.lengths.argmax()), int(self.lengths.max())
            raise InputError(
                f"row {row} has {longest} tokens, more than the model's max_len {limit}"
            )

    @staticmethod
    def _check_token(name: str, value: int | None, n_words: int) -> None:
        if not isinstance(value, int | None):
            raise InputError(f"{name} is {value!r}, but must be the number of one token")
        if value is not None and not 0 <= value < n_words:
            raise InputError(f"{name} is {value}, which is no token of a vocabulary of {n_words}")

    @property
    def reads_images(self) -> bool:
        """Whether the source is an image."""
        return bool(getattr(self.model, "reads_images", False))

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a state in the place of keys and values, which padding would change."""
        return bool(getattr(self.model, "is_recurrent", False))

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
        """(B, T) bool, the mask or all True; an image counts as one token."""
        if self.mask is not None:
            return self.mask
        shape = (len(self.ids), 1) if self.reads_images else self.ids.shape
        return torch.ones(shape, dtype=torch.bool, device=self.ids.device)

    @property
    def tokens(self) -> Tensor:
        """(B, T) what tells rows apart: the ids, or one number made of an image's pixels."""
        if not self.reads_images:
            return self.ids
        pixels = [image.cpu().float().numpy().tobytes() for image in self.ids]
        numbers = [int.from_bytes(blake2b(image, digest_size=7).digest()) for image in pixels]
        return torch.tensor(numbers, device=self.ids.device)[:, None]

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

    def start(self, cache: KVCache | None) -> tuple[Step, Tensor]:
        """The model as a step function, and the (B, T) or (B, 1) tokens to call it with first."""
        mask = self.mask
        if mask is not None and bool(mask.all()):
            mask = None  # without padding attention has faster kernels
        if isinstance(self.model, Seq2SeqModel):
            step = Seq2SeqStep(self.model, self.ids, mask, cache)
            start = torch.full((len(self.ids), 1), self.bos_id, device=self.ids.device)
            return step, start
        assert isinstance(self.model, CausalModel)
        return CausalStep(self.model, mask, None if self.is_recurrent else cache), self.ids


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
