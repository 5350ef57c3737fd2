"""Checks of the arguments of `generate` and `beam_search`, before the model runs.

Shapes: B rows, T tokens, C channels.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.generation.step import CausalModel, CausalStep, Seq2SeqModel, Seq2SeqStep, Step

MAX_EXTRA_TOKENS = 50  # of a target, relative to its source (Vaswani et al. 2017, section 6.1)


@dataclass(frozen=True)
class GenerationInputs:
    """Prompts of a causal LM or sources of an encoder-decoder, with the special tokens.

    Args:
        model: The model. Its config has `vocab_size` and optionally `max_len`; a config
            `encoder` within it describes the model that reads the sources.
        ids: (B, T) int64, or images (B, C, side, side).
        mask: (B, T) bool, True = real token; None means all are.
        bos_id: First token of a target; None for a causal LM.
        eos_id: Token that ends a row, or None.
        pad_id: Token that fills the columns after the end of a row.
        ids_name: Name of the argument `ids` in error messages.

    Raises:
        InputError: The model does not generate tokens, or cannot read these inputs.
    """

    model: nn.Module
    ids: Tensor
    mask: Tensor | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int
    ids_name: str

    @classmethod
    def create(
        cls,
        model: nn.Module,
        ids: Tensor,
        mask: Tensor | None,
        *,
        bos_id: int | None,
        eos_id: int | None,
        pad_id: int | None,
        ids_name: str,
    ) -> "GenerationInputs":
        """Build the inputs, with special tokens from the model where they are not given."""
        defaults = getattr(model, "generation_defaults", None)
        bos_id = getattr(defaults, "bos_id", None) if bos_id is None else bos_id
        eos_id = getattr(defaults, "eos_id", None) if eos_id is None else eos_id
        pad_id = getattr(defaults, "pad_id", None) if pad_id is None else pad_id
        if pad_id is None:
            pad_id = 0 if eos_id is None else eos_id
        return cls(model, ids, mask, bos_id, eos_id, pad_id, ids_name)

    def __post_init__(self) -> None:
        if not getattr(self.model, "can_generate", False):
            raise InputError(
                f"must be a causal LM or an encoder-decoder, got {type(self.model).__name__}",
                option="model",
            )
        if self.accepts_images:
            self._check_images()
        else:
            self._check_ids()
            self._check_mask()
            self._check_lengths()
        if self.is_seq2seq:
            if self.bos_id is None:
                raise InputError(
                    "must be given: the model does not store the first token of a target",
                    option="bos_id",
                )
            self._check_token("bos_id", self.bos_id)
        if self.eos_id is not None:
            self._check_token("eos_id", self.eos_id)

    def _check_images(self) -> None:
        images = self.ids
        is_batch = isinstance(images, Tensor) and images.ndim == 4 and images.numel() > 0
        if not is_batch or not images.is_floating_point():
            raise InputError(
                f"must be float images (B, C, side, side), got {_describe(images)}",
                option=self.ids_name,
            )
        if self.mask is not None:
            raise InputError("must be None for images", option=self._mask_name)

    def _check_ids(self) -> None:
        ids: object = self.ids  # a user may pass anything
        if isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.ndim == 2 and ids.numel():
            encoder: Any = self.model.config
            encoder = getattr(encoder, "encoder", encoder)
            vocab_size = encoder.vocab_size or self.vocab_size
            for value in (int(ids.min()), int(ids.max())):
                if not 0 <= value < vocab_size:
                    raise InputError(
                        f"must be token ids from 0 to {vocab_size - 1}, got {value}",
                        option=self.ids_name,
                    )
            return
        hint = ""
        if isinstance(ids, str):
            hint = "; encode a text with model.tokenizer.encode"
        elif isinstance(ids, Tensor) and ids.ndim == 1:
            hint = f"; add a dimension with {self.ids_name}[None]"
        raise InputError(
            f"must be a tensor of int64 token ids (B, T), got {_describe(ids)}{hint}",
            option=self.ids_name,
        )

    def _check_mask(self) -> None:
        mask = self.mask
        if mask is None:
            return
        is_bool = isinstance(mask, Tensor) and mask.dtype == torch.bool
        if not is_bool or mask.shape != self.ids.shape:
            raise InputError(
                f"must be a bool tensor {tuple(self.ids.shape)}, got {_describe(mask)}",
                option=self._mask_name,
            )
        if self.is_recurrent and not bool(mask.all()):
            raise InputError(
                "must not mark padding for a recurrent model, whose prompts must have equal"
                " lengths",
                option=self._mask_name,
            )
        if int(self.lengths.min()) == 0:
            row = int(self.lengths.argmin())
            raise InputError(
                f"must mark a real token in each row, got none in row {row}",
                option=self._mask_name,
            )

    def _check_lengths(self) -> None:
        encoder: Any = self.model.config
        max_len = getattr(getattr(encoder, "encoder", encoder), "max_len", None)
        longest = int(self.lengths.max())
        if max_len is not None and longest > max_len:
            row = int(self.lengths.argmax())
            raise InputError(
                f"must have at most max_len = {max_len} tokens per row, got {longest} in row {row}",
                option=self.ids_name,
            )

    def _check_token(self, name: str, value: object) -> None:
        if not isinstance(value, int) or not 0 <= value < self.vocab_size:
            raise InputError(
                f"must be a token id from 0 to {self.vocab_size - 1}, got {value!r}", option=name
            )

    @property
    def _mask_name(self) -> str:
        return "mask" if self.ids_name == "ids" else f"{self.ids_name}_mask"

    @property
    def accepts_images(self) -> bool:
        """The sources are images."""
        return bool(getattr(self.model, "accepts_images", False))

    @property
    def is_recurrent(self) -> bool:
        """The model has a recurrent state, which padding would change."""
        return bool(getattr(self.model, "is_recurrent", False))

    @property
    def is_seq2seq(self) -> bool:
        """The model generates a target for a source."""
        return isinstance(self.model, Seq2SeqModel)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    @property
    def max_len(self) -> int | None:
        return getattr(self.model.config, "max_len", None)

    @property
    def lengths(self) -> Tensor:
        """Number of real tokens of each row, (B,)."""
        return self.real.sum(dim=1)

    @property
    def real(self) -> Tensor:
        """Mask (B, T), all True if none is given; an image counts as one token."""
        if self.mask is not None:
            return self.mask
        shape = (len(self.ids), 1) if self.accepts_images else self.ids.shape
        return torch.ones(shape, dtype=torch.bool, device=self.ids.device)

    @property
    def row_keys(self) -> Tensor:
        """Integers (B, T) that identify a row: its token ids, or a hash of an image."""
        if not self.accepts_images:
            return self.ids
        pixels = [image.cpu().float().numpy().tobytes() for image in self.ids]
        hashes = [int.from_bytes(blake2b(image, digest_size=7).digest()) for image in pixels]
        return torch.tensor(hashes, device=self.ids.device)[:, None]

    def limit(self, name: str, requested: int | None, minimum: int) -> Tensor:
        """Return the maximum number of new tokens of each row, (B,).

        Args:
            name: Name of the argument in error messages.
            requested: Its value; None means the length of each row + 50, within `max_len`.
            minimum: Smallest value allowed.

        Raises:
            InputError: The value is below `minimum`, or longer than the model supports.
        """
        if requested is not None and requested < minimum:
            raise InputError(f"must be at least {minimum}, got {requested}", option=name)
        if requested is None:
            limit = self.lengths + MAX_EXTRA_TOKENS
        else:
            limit = torch.full_like(self.lengths, requested)
        if self.max_len is None:
            return limit
        used = torch.ones_like(limit) if self.is_seq2seq else self.lengths
        available = self.max_len + 1 - used  # the last new token is not an input of the model
        if requested is not None and requested > int(available.min()):
            raise InputError(
                f"must be at most {int(available.min())} here, because the model has max_len ="
                f" {self.max_len}, got {requested}",
                option=name,
            )
        return torch.minimum(limit, available)

    def start(self, cache: KVCache | None) -> tuple[Step, Tensor]:
        """Return the model as a step function, and the tokens (B, T) of its first call."""
        mask = self.mask
        if mask is not None and bool(mask.all()):
            mask = None  # attention is faster without a mask
        if isinstance(self.model, Seq2SeqModel):
            assert self.bos_id is not None
            step = Seq2SeqStep(self.model, self.ids, mask, cache)
            start = torch.full((len(self.ids), 1), self.bos_id, device=self.ids.device)
            return step, start
        assert isinstance(self.model, CausalModel)
        return CausalStep(self.model, mask, None if self.is_recurrent else cache), self.ids


def _describe(x: object) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    return f"a {type(x).__name__}"
