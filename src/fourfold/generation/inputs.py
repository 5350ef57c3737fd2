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
from fourfold.generation.step import CausalStep, Seq2SeqStep, Step
from fourfold.layers.generation_defaults import GenerationDefaults, first_known

# New tokens if the model stores no limit: of a target relative to its source (Vaswani et al. 2017,
# section 6.1), of a continuation, and of a caption.
MAX_EXTRA_TOKENS = MAX_CONTINUATION = MAX_CAPTION = 50


class GenerationInputs:
    """Checked arguments of `generate` or `beam_search`: prompts or sources, and special tokens.

    The arguments are those of `generate` and `beam_search`. Each special token that is None is
    taken from `model.generation_defaults`. In error messages, `ids` is called `ids_name`. An image
    counts as one token.

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
        # Of a target, or of a prompt with its continuation.
        self.max_len: int | None = getattr(model.config, "max_len", None)
        # Config of the encoder of an encoder-decoder, or of the causal LM.
        self.reader_config: Any = getattr(model.config, "encoder", model.config)
        defaults: GenerationDefaults = model.generation_defaults or GenerationDefaults()
        self.defaults = defaults
        # A model from `load` stores all three tokens; those of a tokenizer that was set are known.
        tokenizer = getattr(model, "tokenizer", None)
        start = getattr(model.config, "decoder_start_token_id", None)
        own_bos, own_eos = (getattr(tokenizer, name, None) for name in ("bos_id", "eos_id"))
        self.bos_id = first_known(bos_id, defaults.bos_id, start, own_bos)
        stored = defaults.end_ids or (() if own_eos is None else (own_eos,))
        given = stored if eos_id is None else eos_id
        self.eos_ids = tuple(given) if isinstance(given, Sequence) else (given,)
        self.pad_id: int = first_known(pad_id, defaults.pad_id, *self.eos_ids, 0)
        self._check_tensors()
        shape = (len(ids), 1) if model.accepts_images else ids.shape
        self.real = torch.ones(shape, dtype=torch.bool, device=ids.device) if mask is None else mask
        self.lengths = self.real.sum(dim=1)
        self._check_lengths()
        if self.is_seq2seq:
            require("bos_id", self.bos_id is not None, "first token of a target")
        # A token outside the vocabulary would never end a sequence.
        tokens = [("bos_id", self.bos_id)] if self.is_seq2seq else []
        for name, token in [*tokens, *(("eos_id", token) for token in self.eos_ids)]:
            check_type(name, token, int)
            check_range(name, token, minimum=0, below=self.vocab_size)

    def _check_tensors(self) -> None:
        """Raise InputError unless inputs and mask have valid shapes, data types and values."""
        ids, mask, is_image = self.ids, self.mask, self.model.accepts_images
        kind = "float images (B, C, height, width)" if is_image else "int64 token ids (B, T)"
        is_valid = ids.is_floating_point() if is_image else ids.dtype == torch.int64
        if not is_valid or ids.ndim != (4 if is_image else 2) or not ids.numel():
            message = f"must be {kind}, got {ids.dtype} {tuple(ids.shape)}"
            raise InputError(message, option=self.ids_name)
        if not is_image:
            # On a GPU, an id outside the vocabulary would end the process without naming it.
            last = (self.reader_config.vocab_size or self.vocab_size) - 1
            for value in (int(ids.min()), int(ids.max())):
                check_range(self.ids_name, value, minimum=0, maximum=last)
        if mask is None:
            return
        if is_image or mask.dtype != torch.bool or mask.shape != ids.shape:
            wanted = "None for images" if is_image else f"a bool tensor {tuple(ids.shape)}"
            message = f"must be {wanted}, got {mask.dtype} {tuple(mask.shape)}"
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

    @property
    def row_keys(self) -> Tensor:
        """Token ids (B, T), or a hash of the pixels of each image (B, 1), as seeds of samples."""
        if not self.model.accepts_images:
            return self.ids
        pixels = [image.cpu().float().numpy().tobytes() for image in self.ids]
        hashes = [int.from_bytes(blake2b(image, digest_size=7).digest()) for image in pixels]
        return torch.tensor(hashes, device=self.ids.device)[:, None]

    def limit(self, requested: int | None, minimum: int) -> Tensor:
        """Return the maximum number of new tokens of each row, (B,) int64, at most what fits.

        `requested` is `max_new_tokens` of the caller, which must fit into the model.
        """
        fixed = first_known(requested, self.defaults.max_new_tokens)
        if requested is not None:
            check_range("max_new_tokens", requested, minimum=minimum)
        elif fixed is None and not self.is_seq2seq:
            fixed = MAX_CONTINUATION
        elif fixed is None and self.model.accepts_images:
            # `max_len` counts the start token and the tokens of the longest caption.
            fixed = self.model.artifacts.get("max_len", MAX_CAPTION + 1) - 1
        limit = self.lengths + MAX_EXTRA_TOKENS
        limit = limit if fixed is None else torch.full_like(limit, fixed)
        if self.max_len is None:
            return limit
        used = torch.ones_like(limit) if self.is_seq2seq else self.lengths
        available = self.max_len + 1 - used  # the last new token is not an input of the model
        if requested is not None and requested > (most := int(available.min())):
            message = f"must be at most {most} here, because the model has max_len = {self.max_len}"
            raise InputError(f"{message}, got {requested}", option="max_new_tokens")
        return torch.minimum(limit, available)

    def repeat(self, n: int) -> None:
        """Repeat each row `n` times."""
        for name in ("ids", "mask", "real", "lengths"):
            if (x := getattr(self, name)) is not None:
                setattr(self, name, x.repeat_interleave(n, 0))

    def start(self, cache: KVCache | None) -> tuple[Step, Tensor]:
        """Return the `Step` that decodes, and the token ids int64 of its first call.

        These are the prompts (B, T) for a causal LM, and a column (B, 1) of `bos_id` for an
        encoder-decoder, whose encoder runs here. Without a cache, each step computes all tokens.
        """
        mask = None if bool(self.real.all()) else self.mask  # attention is faster without a mask
        if not self.is_seq2seq:
            return CausalStep(self.model, mask, cache), self.ids
        start = self.ids.new_full((len(self.ids), 1), self.bos_id or 0, dtype=torch.long)
        return Seq2SeqStep(self.model, self.ids, mask, cache), start


def require(name: str, is_known: bool, meaning: str) -> None:
    """Raise InputError unless the special token of the argument `name` is known."""
    if not is_known:
        raise InputError(f"must be given: the model does not store the {meaning}", option=name)
