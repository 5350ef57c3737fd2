"""GenerationInputs: checks the arguments of `generate` and `beam_search`, and starts decoding.

Shapes: B rows (prompts or sources), T tokens, C channels.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fourfold.core.kv_cache import KVCache
from fourfold.core.validation import check_range, check_type
from fourfold.errors import InputError
from fourfold.generation.defaults import GenerationDefaults
from fourfold.generation.step import CausalStep, Seq2SeqStep, Step

MAX_EXTRA_TOKENS = 50  # of a target, relative to its source (Vaswani et al. 2017, section 6.1)


class GenerationInputs:
    """Checked arguments of `generate` or `beam_search`: prompts or sources, and special tokens.

    Each special token that is None is taken from `model.generation_defaults`.

    Args:
        model: Model whose config has `vocab_size` and optionally `max_len`. If the config has a
            field `encoder`, that field is the config of the encoder.
        ids: Token ids (B, T) int64, or images (B, C, side, side).
        mask: (B, T) bool, True = real token; None means that all tokens are real.
        bos_id: First token of a target; not used for a causal LM.
        eos_id: Token or tokens that end a sequence; an empty sequence means that none does.
        pad_id: Token that fills the columns after the end of a sequence. If no padding token is
            known, the first end token fills the columns.
        ids_name: Name of the argument `ids` in error messages: "ids" or "src".

    Attributes:
        is_seq2seq: True if the model is an encoder-decoder, which has a method `decode`.
        vocab_size: Number of tokens that the model can generate.
        max_len: Maximum number of tokens that the model supports, in a target or in a prompt with
            its continuation; None if there is no maximum.
        eos_ids: All tokens that end a sequence.
        reader_config: Config of the encoder of an encoder-decoder, or of the causal LM.
        real: Mask of the real tokens, (B, T) bool. An image counts as one token.
        lengths: Number of real tokens of each row, (B,).

    Raises:
        InputError: The model does not generate tokens, or cannot read these inputs.
    """

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        mask: Tensor | None,
        *,
        bos_id: int | None,
        eos_id: int | Sequence[int] | None,
        pad_id: int | None,
        ids_name: str = "ids",
    ) -> None:
        if not getattr(model, "can_generate", False):
            message = f"must be a causal LM or an encoder-decoder, got {type(model).__name__}"
            raise InputError(message, option="model")
        self.model = model
        self.ids = ids
        self.mask = mask
        self.ids_name = ids_name
        self.mask_name = "mask" if ids_name == "ids" else f"{ids_name}_mask"
        self.is_seq2seq = hasattr(model, "decode")
        self.vocab_size: int = model.config.vocab_size
        self.max_len: int | None = getattr(model.config, "max_len", None)
        self.reader_config: Any = getattr(model.config, "encoder", model.config)
        defaults: GenerationDefaults = model.generation_defaults or GenerationDefaults()
        self.bos_id = defaults.bos_id if bos_id is None else bos_id
        given = defaults.end_ids if eos_id is None else eos_id
        self.eos_ids = tuple(given) if isinstance(given, Sequence) else (given,)
        fillers = (pad_id, defaults.pad_id, *self.eos_ids, 0)
        self.pad_id = next(token for token in fillers if token is not None)
        if model.accepts_images:
            self._check_images()
        else:
            self._check_tokens()
        shape = (len(ids), 1) if model.accepts_images else ids.shape
        self.real = torch.ones(shape, dtype=torch.bool, device=ids.device) if mask is None else mask
        self.lengths = self.real.sum(dim=1)
        self._check_lengths()
        self._check_special_tokens()

    def _check_images(self) -> None:
        """Raise InputError unless the images are a batch (B, C, side, side) without a mask."""
        images = self.ids
        is_batch = isinstance(images, Tensor) and images.ndim == 4 and images.numel() > 0
        if not is_batch or not images.is_floating_point():
            message = f"must be float images (B, C, side, side), got {_describe(images)}"
            raise InputError(message, option=self.ids_name)
        if self.mask is not None:
            raise InputError("must be None for images", option=self.mask_name)

    def _check_tokens(self) -> None:
        """Raise InputError unless token ids and mask have valid shapes, data types and values."""
        ids: Any = self.ids  # a user may pass anything
        is_tensor = isinstance(ids, Tensor)
        if not is_tensor or ids.dtype != torch.int64 or ids.ndim != 2 or not ids.numel():
            message = f"must be a tensor of int64 token ids (B, T), got {_describe(ids)}"
            if is_tensor and ids.ndim == 1:
                message += f"; add a dimension with {self.ids_name}[None]"
            raise InputError(message, option=self.ids_name)
        last = (self.reader_config.vocab_size or self.vocab_size) - 1
        for value in (int(ids.min()), int(ids.max())):
            if not 0 <= value <= last:
                message = f"must be token ids from 0 to {last}, got {value}"
                raise InputError(message, option=self.ids_name)
        mask: Any = self.mask
        if mask is None:
            return
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != ids.shape:
            message = f"must be a bool tensor {tuple(ids.shape)}, got {_describe(mask)}"
            raise InputError(message, option=self.mask_name)
        if self.model.is_recurrent and not self.is_seq2seq and not bool(mask.all()):
            message = "must not mark padding for a recurrent model: prompts must have equal lengths"
            raise InputError(message, option=self.mask_name)

    def _check_lengths(self) -> None:
        """Raise InputError unless each row has from 1 to `reader_config.max_len` real tokens."""
        lengths = self.lengths.tolist()
        if 0 in lengths:
            message = f"must mark a real token in each row, got none in row {lengths.index(0)}"
            raise InputError(message, option=self.mask_name)
        longest = max(lengths)
        max_len = getattr(self.reader_config, "max_len", None)
        if max_len is not None and longest > max_len:
            row = lengths.index(longest)
            message = f"must have at most max_len = {max_len} tokens, got {longest} in row {row}"
            raise InputError(message, option=self.ids_name)

    def _check_special_tokens(self) -> None:
        """Raise InputError unless the needed special tokens are known and in the vocabulary."""
        if self.is_seq2seq:
            require("bos_id", self.bos_id is not None, "first token of a target")
        last = self.vocab_size - 1
        tokens = [("bos_id", self.bos_id)] if self.is_seq2seq else []
        for name, token in [*tokens, *(("eos_id", token) for token in self.eos_ids)]:
            if not (isinstance(token, int) and 0 <= token <= last):
                raise InputError(f"must be a token id from 0 to {last}, got {token!r}", option=name)

    def suppressed(self, tokens: Sequence[int] | None) -> Tensor | None:
        """Return the ids of the tokens that must not be generated, (n,) int64; None for none.

        Args:
            tokens: Value of the argument `suppress_tokens` of the caller.

        Raises:
            InputError: An element is not in the vocabulary, or no token would be left.
        """
        tokens = () if tokens is None else tokens
        check_type("suppress_tokens", tokens, Sequence)
        for token in tokens:
            check_type("suppress_tokens", token, int)
            check_range("suppress_tokens", token, minimum=0, below=self.vocab_size)
        if len(set(tokens)) == self.vocab_size:
            raise InputError("must leave a token of the vocabulary", option="suppress_tokens")
        return torch.tensor(list(tokens), device=self.ids.device) if tokens else None

    @property
    def row_keys(self) -> Tensor:
        """Integers that identify the input of each row, as seeds of random numbers.

        They are the token ids (B, T), or a hash of the pixels of each image (B, 1), int64.
        """
        if not self.model.accepts_images:
            return self.ids
        pixels = [image.cpu().float().numpy().tobytes() for image in self.ids]
        hashes = [int.from_bytes(blake2b(image, digest_size=7).digest()) for image in pixels]
        return torch.tensor(hashes, device=self.ids.device)[:, None]

    def limit(self, name: str, requested: int | None, minimum: int) -> Tensor:
        """Compute the maximum number of new tokens of each row, (B,) int64.

        Args:
            name: Name of the caller's argument in error messages, such as "max_new".
            requested: Value of the caller's argument, in tokens. None means the length of each row
                + 50, but at most as many as `max_len` of the model allows.
            minimum: Smallest allowed value of `requested`.

        Raises:
            InputError: The value is below `minimum`, or longer than the model supports.
        """
        if requested is None:
            limit = self.lengths + MAX_EXTRA_TOKENS
        else:
            check_range(name, requested, minimum=minimum)
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
        """Build the object that runs the model during decoding, and the first tokens of its input.

        For an encoder-decoder, this method runs the encoder.

        Args:
            cache: Empty cache of the decoder. With None, each decoding step computes all tokens
                again.

        Returns:
            A tuple of a `Step` and the token ids int64 of its first call. These are the prompts
            (B, T) for a causal LM, and a column (B, 1) of `bos_id` for an encoder-decoder.
        """
        mask = None if bool(self.real.all()) else self.mask  # attention is faster without a mask
        if not self.is_seq2seq:
            return CausalStep(self.model, mask, cache), self.ids
        start = self.ids.new_full((len(self.ids), 1), self.bos_id or 0, dtype=torch.long)
        return Seq2SeqStep(self.model, self.ids, mask, cache), start


def require(name: str, is_known: bool, meaning: str) -> None:
    """Raise InputError unless a special token is known.

    Args:
        name: Name of the argument, "bos_id" or "eos_id".
        is_known: The token was given, or is stored with the model.
        meaning: Description of the token for the error message.
    """
    if not is_known:
        raise InputError(f"must be given: the model does not store the {meaning}", option=name)


def _describe(x: object) -> str:
    """Describe a value for an error message, such as "int64 (2, 3)" for a tensor or "a list"."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    return f"a {type(x).__name__}"
