"""What DataModules of text share: a tokenizer that all processes and resumed runs agree on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from fourfold.core.errors import InputError
from fourfold.data.datamodule import BatchDataset, EpochData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_files import make_tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig

PLACES = ("file", "merges")  # of a TokenizerConfig, where its files are


class TokenizedData(EpochData):
    """Base of the DataModules of text: subclasses write `read` and `encode`.

    Args:
        tokenizer: what tokenizer to train or read.
        seed: decides order, masking and cropping, together with the epoch.
        num_workers: processes that prepare batches.
    """

    needs_mask = False
    special: ClassVar[Sequence[str] | None] = None  # tokens in another order than the usual one

    def __init__(self, tokenizer: TokenizerConfig, seed: int = 0, num_workers: int = 0) -> None:
        super().__init__(seed, num_workers)
        self._config = tokenizer
        self._tokenizer: Tokenizer | None = None

    @abstractmethod
    def read(self) -> dict[str, Any]:
        """The raw text of the splits."""

    @abstractmethod
    def training_texts(self, raw: Any) -> Sequence[str]:
        """What the tokenizer is trained on, out of the raw training split."""

    @abstractmethod
    def encode(self, name: str, raw: Any, tokenizer: Tokenizer) -> BatchDataset:
        """The split called `name` as numbers."""

    def build(self) -> dict[str, BatchDataset]:
        """Reads the text, finds the tokenizer unless a checkpoint brought one, and encodes."""
        raw = self.read()
        tokenizer = self._tokenizer
        if tokenizer is None:
            if not self._config.file and "train" not in raw:
                raise InputError("a tokenizer is trained on `train`: give that, or tokenizer.file")
            texts = [] if self._config.file else self.training_texts(raw["train"])
            tokenizer = make_tokenizer(
                self._config, texts, mask=self.needs_mask, special=self.special
            )
            if self.trainer is not None and self.trainer.world_size > 1:
                # Unigram's training is not the same to the last bit in every process.
                text = self.trainer.strategy.broadcast(tokenizer.to_str())
                tokenizer = Tokenizer.from_str(text)
        splits = {name: self.encode(name, rows, tokenizer) for name, rows in raw.items()}
        self._tokenizer = tokenizer
        return splits

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; reads and, if so configured, trains on the data when first asked."""
        self.setup()
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary."""
        return self.tokenizer.vocab_size

    def artifacts(self) -> dict[str, Any]:
        """The tokenizer as a JSON string: all that inference needs beside the model."""
        return {"tokenizer": self.tokenizer.to_str()}

    def state_dict(self) -> dict[str, Any]:
        """The place in the data, the tokenizer and how it was made."""
        return super().state_dict() | {
            "tokenizer": self.tokenizer.to_str(),
            "tokenizer_config": asdict(self._config),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up the checkpoint's tokenizer and its place in the data.

        Raises:
            InputError: the data section describes another tokenizer, or as `EpochData`.
        """
        saved, ours = state_dict["tokenizer_config"], asdict(self._config)
        # A run may have been moved, and its tokenizer with it: what its file says is looked at.
        changed = [key for key in ours if key not in PLACES and saved.get(key) != ours[key]]
        if changed and self._config.file is None:
            raise InputError(
                f"The checkpoint's tokenizer has {changed[0]}={saved.get(changed[0])!r}, this data"
                f" section has {getattr(self._config, changed[0])!r}: use the checkpoint's."
            )
        if self._config.file is not None and state_dict["tokenizer"] != self.tokenizer.to_str():
            raise InputError(
                f"The checkpoint's tokenizer is another than that of {self._config.file}: use the"
                " checkpoint's."
            )
        if state_dict["tokenizer"] != self.tokenizer.to_str():
            self._tokenizer = Tokenizer.from_str(
                state_dict["tokenizer"], "the checkpoint's tokenizer"
            )
            self.splits = self.build()
        super().load_state_dict(state_dict)
